"""``mpirun`` (Open MPI) starts lockstep scripts: one run, the same answer, and nothing left when a
rank fails."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

# Each process imports torch by itself, which takes seconds where there are few cores.
pytestmark = [pytest.mark.timeout(240), pytest.mark.long]

TRAIN = """
import hashlib, lockstep, sys, torch
team = lockstep.join(shards=4, threads=1, device="cpu")
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
data = torch.utils.data.TensorDataset(torch.randn(30, 4))
model, loader = team.prepare(model, torch.utils.data.DataLoader(data, 8, shuffle=True))
for epoch in team.epochs(1):
    for batch in loader:
        for (x,) in batch.shards:
            team.backward(model(x).square().mean())
        for p in model.parameters():  # PyTorch's optimizers import its compiler: half of the processor's time of each process
            p.data.sub_(p.grad, alpha=0.1)
            p.grad = None
weights = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
digest = hashlib.sha256(weights).hexdigest()
# In one piece: mpirun may put those of several ranks one into another.
sys.stdout.write(f"rank {team.rank} of {team.world_size} {team.world.launcher} {digest}\\n")
"""


@pytest.fixture
def files():
    """A directory for what Open MPI and torch write. Its name is short: those of sockets are 107
    bytes at most."""
    with tempfile.TemporaryDirectory(prefix="mpi-") as name:
        yield Path(name)


@pytest.fixture
def mpirun(require, tmp_path, files):
    """``mpirun(nproc, source, *options)``: to its end, in ``tmp_path``, with a directory of its own
    for Open MPI's files."""
    program = shutil.which("mpirun")
    require("mpi", None if program else "mpirun is missing (on Debian: apt-get install openmpi-bin)")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=100).stdout
    require("mpi", None if "Open MPI" in version else f"mpirun is not Open MPI's: {version.splitlines()[:1]}")

    def run(nproc, source, *options, env=None):
        (tmp_path / "script.py").write_text(textwrap.dedent(source))
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = [program, *as_root, "--oversubscribe", "-np", str(nproc), *options, sys.executable, "script.py"]
        variables = {**os.environ, "TMPDIR": str(files), **(env or {})}
        return subprocess.run(
            command, cwd=tmp_path, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200
        )

    return run


def told(done):
    assert done.returncode == 0, done.stderr
    return sorted(re.findall(r"rank (\d+) of (\d+) (\w+) (\w{64})", done.stdout))


def left_in(files):
    """What is left of Open MPI's directories, in which the processes met. (torch keeps others
    there.)"""
    return [path.name for path in files.iterdir() if path.name.startswith(("ompi", "lockstep"))]


def test_a_script_runs_as_so_many_ranks_with_the_answer_of_lockstep_run(mpirun, run_here, tmp_path, files):
    four = mpirun(4, TRAIN)
    assert [one[:3] for one in told(four)] == [(str(rank), "4", "mpirun") for rank in range(4)]
    assert "4 processes, 1 thread" in four.stdout
    assert "gloo on lo" in four.stdout
    assert not re.search(r"[\x1b\b]|\r(?!\n)", four.stdout)
    shutil.rmtree(tmp_path / "runs")
    one = told(run_here(TRAIN, "--nproc-per-node", "1"))
    assert {digest for *_, digest in told(four)} == {digest for *_, digest in one}
    assert left_in(files) == []


def test_when_a_rank_fails_nothing_is_left(mpirun, files):
    done = mpirun(
        3,
        """
        import time, torch, lockstep
        from torch.utils.data import DataLoader
        team = lockstep.join(device="cpu")
        workers = iter(DataLoader(list(range(100)), num_workers=1, persistent_workers=True))
        next(workers)
        if team.rank == 1:
            raise RuntimeError("rank 1 has had enough")
        team.barrier()
        time.sleep(100)
        """,
    )  # whatever is left fails the test: see tests/conftest.py
    assert done.returncode == 1
    assert "RuntimeError: rank 1 has had enough" in done.stderr
    assert left_in(files) == []
