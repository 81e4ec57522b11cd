"""The example of the README learns, and gives the same answer however it is started."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"


def results(text):
    """Test loss and accuracy of each epoch."""
    found = re.findall(r"epoch (\d+): test loss ([\d.]+), accuracy ([\d.]+)%", text)
    return [(int(epoch), float(loss), float(accuracy)) for epoch, loss, accuracy in found]


def test_digits_learns_the_same_on_one_and_on_two_processes(run_here):
    told = []
    for nproc in ("1", "2"):
        options = ("--nproc-per-node", nproc, "--threads", "1", "--device", "cpu")
        done = run_here(EXAMPLE, *options, args=("--epochs", "2"))
        assert done.returncode == 0, done.stderr
        told.append(results(done.stdout))
    assert [epoch for epoch, _, _ in told[0]] == [1, 2]
    assert told[0][-1][2] > 85
    for one, two in zip(*told, strict=True):
        assert one == pytest.approx(two, abs=0.6)  # a sample or two of 360 may be on the edge


@pytest.mark.long
def test_digits_runs_under_plain_python(python_here, tmp_path):
    done = python_here(EXAMPLE, "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert "global batch 64 = 8 shards x 8 on 1 process" in done.stdout
    assert len(results(done.stdout)) == 1
    assert (tmp_path / "runs" / "digits-1" / "events.jsonl").is_file()
