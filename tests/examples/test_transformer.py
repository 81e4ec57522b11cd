"""The transformer learns, with losses weighted by token, and gives the same answer however it is started."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)
EXAMPLE = Path(__file__).parents[2] / "examples" / "transformer.py"


def results(text):
    """Test loss, top-1 and top-5 accuracy of each epoch, as they are printed."""
    return re.findall(r"epoch \d+: test loss ([\d.]+), top-1 ([\d.]+)%, top-5 ([\d.]+)%", text)


@pytest.mark.long
def test_the_transformer_learns_the_same_on_one_and_on_two_processes(run_here):
    told = []
    for nproc in ("1", "2"):
        options = ("--nproc-per-node", nproc, "--threads", "1", "--device", "cpu")
        done = run_here(EXAMPLE, *options, args=("--epochs", "1"))
        assert done.returncode == 0, done.stderr
        told.append(results(done.stdout))
    assert told[0] == told[1]
    [(loss, top1, top5)] = told[0]
    assert float(loss) < 3.0  # guessing: 4.5
    assert float(top1) > 15
    assert float(top5) > 45
