"""The model in two parts learns, and gives the same answer however it is started."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)
EXAMPLE = Path(__file__).parents[2] / "examples" / "toy_model_parallel.py"
CPU = ("--device", "cpu", "--threads", "1")


def losses(text):
    return re.findall(r"^epoch \d+: loss ([\d.]+)", text, flags=re.MULTILINE)


@pytest.mark.long
def test_two_parts_learn_the_same_on_one_and_on_two_processes(run_here):
    told = []
    for nproc in ("1", "2"):
        done = run_here(EXAMPLE, "--devices-per-process", "2", "--nproc-per-node", nproc, *CPU)
        assert done.returncode == 0, done.stderr
        assert "1 thread and 2 devices each" in done.stdout
        assert "net1 on cpu, net2 on cpu" in done.stdout
        told.append(losses(done.stdout))
    assert told[0] == told[1]
    assert len(told[0]) == 5
    assert float(told[0][-1]) < 0.2 < float(told[0][0])


def test_it_runs_under_plain_python_with_one_device_for_both_parts(python_here):
    done = python_here(EXAMPLE, "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 1
