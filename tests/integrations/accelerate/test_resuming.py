"""A training by accelerate's interface that is killed on some processes and resumed on others."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]


def run(nest, place, processes, function="train", kill_at=0):
    return nest.run(processes, "resumed", function, [kill_at], place)


def test_a_killed_training_ends_with_the_same_numbers_on_another_number_of_processes(nest, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    _, [expected] = run(nest, whole, 1)
    assert len(expected[0]) == 3
    # between two steps of the optimizer
    assert run(nest, parts, 2, kill_at=4) == ([-9] * 2, [None] * 2)
    assert run(nest, parts, 3, kill_at=12) == ([-9] * 3, [None] * 3)
    statuses, [found] = run(nest, parts, 1)
    assert statuses == [0], (parts / "log-0").read_text()[-3000:]
    assert found == expected


def by_torchrun(place, processes, kill_at):
    """accelerate's nlp_example under torchrun: its last line's content; None: it was killed."""
    script = Path(__file__).parent / "interrupted_example.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run([*command, script, str(kill_at)], cwd=place, capture_output=True, text=True, timeout=150)
    ended = [line for line in done.stdout.splitlines() if line.startswith("ended ")]
    assert bool(ended) == (done.returncode == 0) == (kill_at == 0), done
    return json.loads(ended[0].removeprefix("ended ")) if ended else None


def test_a_public_example_that_is_killed_ends_with_the_weights_and_lines_of_an_undisturbed_one(nest, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    _, [(printed, digests)] = nest.run(1, "interrupted_example", "run", [0], whole)
    assert len(printed) == 4
    assert by_torchrun(parts, 2, 3) is None
    assert nest.run(3, "interrupted_example", "run", [6], parts)[0] == [-9] * 3
    statuses, [found] = nest.run(1, "interrupted_example", "run", [0], parts)
    assert statuses == [0], (parts / "log-0").read_text()[-3000:]
    assert found == [printed[-len(found[0]) :], digests]
