"""Scripts run on the fork server that is warm for the session: see ``warm``."""

import textwrap

import pytest
from warm import run_here

__all__ = ["run_here"]

BEGIN = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ["RANK"])

class Net(nn.Module):
    def __init__(self, out=3):
        super().__init__()
        self.fc1 = nn.Linear(4, 5)
        self.fc2 = nn.Linear(5, out)
    def forward(self, x):
        return self.fc2(self.fc1(x))
"""


@pytest.fixture
def words_of(run_here):
    """``words_of(source)``: what is said, below the script's frames, of a script that fails; empty:
    nothing is."""

    def run(source, nproc=2, env=None):
        done = run_here(BEGIN + textwrap.dedent(source), "--nproc", str(nproc), env=env)
        assert done.returncode == 1, done.stderr
        error, _, words = done.stderr.partition("\n\nExplanation: ")
        assert 'script.py", line' in error, done.stderr
        assert "Explanation: " not in words
        return words.partition("\n\nfailed after it:")[0].rstrip()

    return run
