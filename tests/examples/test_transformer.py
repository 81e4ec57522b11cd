"""The transformer learns, with losses weighted by token. (That it does so with the same bits is in contract/test_matrix.py.)"""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)
EXAMPLE = Path(__file__).parents[2] / "examples" / "transformer.py"


@pytest.mark.long
def test_the_transformer_learns(run_here):
    done = run_here(EXAMPLE, "--nproc-per-node", "2", "--threads", "1", "--device", "cpu", args=("--epochs", "1"))
    assert done.returncode == 0, done.stderr
    told = re.findall(r"epoch \d+: test loss ([\d.]+), top-1 ([\d.]+)%, top-5 ([\d.]+)%", done.stdout)
    [(loss, top1, top5)] = told
    assert float(loss) < 3.0  # guessing: 4.5
    assert float(top1) > 15
    assert float(top5) > 45
