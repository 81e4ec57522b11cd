"""The example of the README learns, and gives the same answer however it is started."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"
TOLD = r"epoch \d+: test loss [\d.]+, accuracy ([\d.]+)%"


def test_digits_learns_the_same_on_one_and_on_two_processes(told_on_one_and_two):
    told, _ = told_on_one_and_two("digits.py", "--epochs", "2")
    assert len(told) == 2
    assert float(re.search(TOLD, told[-1])[1]) > 85


@pytest.mark.long
def test_digits_runs_under_plain_python(python_here, tmp_path):
    done = python_here(EXAMPLE, "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert "global batch 64 = 8 shards x 8 on 1 process" in done.stdout
    assert len(re.findall(TOLD, done.stdout)) == 1
