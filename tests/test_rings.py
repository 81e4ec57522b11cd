"""The rings: the engine trains without the launcher, the tools and the integrations, the launcher
runs without the tools."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from warm import run_here

__all__ = ["run_here"]

pytestmark = pytest.mark.timeout(300)

SOURCE = Path(__file__).parents[1] / "src"
# As examples/digits.py, with a data set made on the spot, and smaller.
SCRIPT = """
import hashlib, os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import lockstep

team = lockstep.join(shards=4, seed=7, threads=1, progress="off", run_dir=sys.argv[1], checkpoint_every=3)
torch.manual_seed(3)
data = TensorDataset(torch.randn(48, 1, 8, 8), torch.randint(0, 5, (48,)))
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
for epoch in team.epochs(2):
    for batch in loader:
        for images, labels in batch.shards:
            team.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
        if team.step == int(sys.argv[2]):
            team.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    with team.evaluate(model, DataLoader(data, 16)) as evaluation:
        for batch in evaluation:
            for images, labels in batch.shards:
                batch.add(accuracy=model(images).argmax(1) == labels)
weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
team.print(team.step, evaluation["accuracy"], hashlib.sha256(weights).hexdigest())
"""
KILLED_AT, NEVER = 8, 0
OUTERMOST = ("integrations", "testing")
BY = {
    "python": ("-u",),
    "lockstep run": ("-m", "lockstep", "run", "--nproc"),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
}


@pytest.fixture
def train(tmp_path, run_here):
    """``train(without, launcher, *count, stop)``: the last line of the script, by a copy of the
    package in part."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def run(without, *launcher, stop=NEVER):
        copy = tmp_path / "-".join(("copy", *without))
        if not copy.exists():
            left_out = [SOURCE / "lockstep" / room for room in without]
            shutil.copytree(
                SOURCE,
                copy,
                ignore=lambda at, names: [n for n in names if Path(at, n) in left_out or n.endswith(".egg-info")],
            )
        command = [sys.executable, *BY[launcher[0]], *launcher[1:], str(script), "-".join(("run", *without)), str(stop)]
        environ = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
        )
        assert (done.returncode == 0) == (stop == NEVER), done.stderr
        return done

    return run


def last_line(done):
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("without", "two", "one"),
    [
        ((*OUTERMOST, "_tools"), ("lockstep run", "2"), ("python",)),
        ((*OUTERMOST, "_tools", "_launch"), ("torchrun", "2"), ("python",)),
    ],
    ids=["without integrations and tools", "and without launcher"],
)
def test_a_part_of_the_package_trains_and_resumes_with_the_answer_of_the_whole(train, run_here, tmp_path, without, two, one):
    whole = run_here(SCRIPT, args=("run-whole", NEVER))
    assert whole.returncode == 0, whole.stderr
    train(without, *two, stop=KILLED_AT)
    resumed = train(without, *one)
    assert "resumes after step" in resumed.stdout  # 3 or 6, whichever was on disk
    assert last_line(resumed) == last_line(whole)
    assert last_line(whole).startswith("10 ")
