"""The checks of the series, rehearsed: no line of theirs is run for the first time on a card, but those that ask CUDA."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu.checks import operations

ROOT = Path(__file__).parents[2]
RUN = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT / "tools")!r})
runpy.run_module("gpu.checks." + sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def check(python_here, tmp_path):
    """``check(name)``: a check on the CPU, with tiny sizes, and what it finds."""

    def run(name, *options):
        script = tmp_path / "check.py"
        script.write_text(RUN)
        done = python_here(script, name, "--device", "cpu", "--tiny", "--found", tmp_path / "found.json", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / "found.json").read_text())

    return run


def test_two_trainings_have_the_same_bits_and_no_operation_differs(check):
    found = check("bits")
    assert sorted(found) == ["cnn, as it is", "cnn, deterministic", "gpt, as it is", "gpt, deterministic"]
    for one in found.values():
        assert len(set(one["PyTorch's loop"])) == len(set(one["lockstep's, V = 2"])) == 1
        assert one["operations that differ"] == {}


def test_an_operation_that_gives_other_bits_for_the_same_is_named():
    values, seeds = torch.ones(4), iter([1, 2])

    def run():
        torch.manual_seed(next(seeds))
        return (torch.rand(4) + values) * 2 + torch.arange(4)  # what follows differs, too: because of what it is given

    assert operations.differing(run) == {"aten.rand.default": 1}


@pytest.mark.parametrize("name", ["sanitized", "waits"])
def test_a_check_runs_on_the_cpu(check, name):
    assert check(name)


def test_a_profile_is_made_of_each_loop_and_its_traces_are_kept(check, tmp_path):
    found = check("profiled", "--traces", tmp_path)
    assert list(found) == ["plain, 1", "lockstep, 1", "plain, 2", "lockstep, 2"]
    assert sorted(path.name for path in tmp_path.glob("*.json.gz")) == ["step-lockstep-1.json.gz", "step-lockstep-2.json.gz"]


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(600)
def test_the_whole_series_can_be_rehearsed(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "tools" / "gpu"),
        "--device",
        "cpu",
        "--limit",
        "900",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2900)
    assert done.returncode == 0, done.stdout
    verdicts = {one["name"]: one["verdict"] for one in json.loads((tmp_path / "out" / "report.json").read_text())["stages"]}
    assert set(verdicts.values()) == {"passed", "rehearsed"}
    assert len(verdicts) == 11
