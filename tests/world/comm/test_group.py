"""Promises of the process group of a run."""

import subprocess
import sys

import pytest

# PyTorch's modules that take the open group as a default are imported while it is open.
OPTIMIZER_FIRST_MADE_IN_A_RUN = """
import sys
import psutil, torch
import lockstep

with lockstep.join(run_dir=sys.argv[1], device="cpu", progress="off"):
    open_there = {one.status for one in psutil.Process().net_connections("inet")}
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)
    import torch.distributed.nn.functional
print("LISTEN" in open_there, [one.laddr for one in psutil.Process().net_connections("inet") if one.status == "LISTEN"])
"""


@pytest.mark.timeout(60)
@pytest.mark.long
def test_the_port_of_a_run_is_closed_with_it(tmp_path):
    command = [sys.executable, "-c", OPTIMIZER_FIRST_MADE_IN_A_RUN, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "True []"
