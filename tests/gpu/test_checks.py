"""The checks of the series, rehearsed as a whole: on a card no line is run for the first time but
those that ask CUDA."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu.checks import operations

ROOT = Path(__file__).parents[2]


def test_an_operation_that_gives_other_bits_for_the_same_is_named():
    values, seeds = torch.ones(4), iter([1, 2])

    def run():
        torch.manual_seed(next(seeds))
        # what follows differs, too: because of what it is given
        return (torch.rand(4) + values) * 2 + torch.arange(4)

    assert operations.differing(run) == {"aten.rand.default": 1}


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
