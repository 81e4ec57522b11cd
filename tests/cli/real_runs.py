"""Runs made by the real command, for the tests of the verbs that look at them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

from warm import run_on

TRAIN = """
import argparse, os, time, torch, lockstep
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--kill", type=int, default=0)
parser.add_argument("--wait", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(0)
team = lockstep.join()
model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
head = nn.Linear(2, 2, bias=False)
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(40, 4))
loader = torch.utils.data.DataLoader(data, 4, shuffle=True)
model, head, optimizer, loader, average = team.prepare(model, head, optimizer, loader, average)
team.register("mine", {"n": 1})
def is_time():  # when there are two checkpoints: the writer may have been busy at the step of one
    if args.kill < 12:
        return team.step == args.kill
    time.sleep(0.1)
    return team.step >= args.kill and len(list((team.run_dir / "checkpoints").glob("step-*"))) >= 2
for epoch in team.epochs(2):
    for batch in loader:
        for (x,) in batch.shards:
            team.backward(head(model(x)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        if os.path.exists("kill") and is_time():
            os.kill(os.getpid(), 9)
        while team.step == args.wait:
            time.sleep(0.05)
    team.best(0.75)
"""
COMMAND = (sys.executable, "-m", "lockstep.cli.main")
STEPS = 20


def run(server, place, run_dir, *args, nproc=1, shards=2, kill=False):
    """``lockstep run`` on a fork server, in ``place`` and the run directory ``run_dir``, to its end: its exit status."""
    (place / "train.py").write_text(TRAIN)
    marker = place / "kill"
    if kill:
        marker.touch()
    else:
        marker.unlink(missing_ok=True)
    ended = run_on(server, place, _command(run_dir, args, nproc, shards), env={"OMP_NUM_THREADS": "1"})
    assert ended.returncode == (137 if kill else 0), ended.stdout + ended.stderr
    return ended.returncode


@contextmanager
def going_on(place, run_dir, *args):
    """A run that goes on until the block is left. It has a checkpoint by the time that it is entered."""
    (place / "train.py").write_text(TRAIN)
    process = _start(place, [*COMMAND, "run", *_command(run_dir, args, 1, 2)])
    try:
        deadline = time.monotonic() + 100
        while not (place / run_dir / "checkpoints" / "newest").exists():
            assert process.poll() is None, (place / "log").read_text()
            assert time.monotonic() < deadline, (place / "log").read_text()
            time.sleep(0.05)
        yield process
    finally:
        _end(process)


def _start(place, command):
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (place / "log").open("w") as log:
        return subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables)


def _end(process):
    deadline = time.monotonic() + 100
    try:
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)  # the first waits for the step, which may never end; the second does not
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
    finally:
        process.kill()
        process.wait()


def _command(run_dir, args, nproc, shards):
    options = ("--nproc", str(nproc), "--shards", str(shards), "--checkpoint-every", "6", "--run-dir", str(run_dir))
    return [*options, "--progress", "off", "train.py", *args]
