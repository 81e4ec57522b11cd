"""Runs made by the real command, which log and evaluate, and may be killed or wait: for the
commands that look at runs."""

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
plain = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), 4, shuffle=True)
model, head, optimizer, loader, average = team.prepare(model, head, optimizer, plain, average)
team.register("mine", {"n": 1})
def is_time():  # when there are two checkpoints: the writer may have been busy at the step of one
    if args.kill < 12:
        return team.step == args.kill
    time.sleep(0.1)
    return team.step >= args.kill and len(list((team.run_dir / "checkpoints").glob("step-*"))) >= 2
for epoch in team.epochs(2):
    for batch in loader:
        for (x,) in batch.shards:
            loss = head(model(x)).square().mean()
            team.backward(loss)
            batch.add(loss=loss)
        team.log(loss=batch["loss"], step=team.step)
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        if os.path.exists("kill") and is_time():
            os.kill(os.getpid(), 9)
        while team.step == args.wait and not os.path.exists("go"):
            time.sleep(0.05)
    with team.evaluate(model, plain) as evaluation:
        for batch in evaluation:
            for (x,) in batch.shards:
                batch.add(error=model(x).square().mean(1))
    team.best(0.75)
"""
STEPS = 20


def run(server, place, run_dir, *args, nproc=1, kill=False, options=()):
    """``lockstep run`` on a fork server, in ``place`` and the run directory ``run_dir``, to its
    end."""
    (place / "train.py").write_text(TRAIN)
    (place / "kill").touch() if kill else (place / "kill").unlink(missing_ok=True)
    ended = run_on(server, place, _command(run_dir, args, nproc, options), env={"OMP_NUM_THREADS": "1"})
    assert ended.returncode == (137 if kill else 0), ended.stdout + ended.stderr


@contextmanager
def waiting(place, run_dir, *args, nproc=1):
    """A run that goes on until the block is left, or its script ends."""
    (place / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "lockstep._cli.main", "run", *_command(run_dir, args, nproc, ())]
    with (place / "log").open("w") as log:
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables)
    try:
        yield process
    finally:
        _end(process)


def _end(process):
    deadline = time.monotonic() + 100
    try:
        while process.poll() is None and time.monotonic() < deadline:
            # the first waits for the step, which may never end; the second does not
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
    finally:
        process.kill()
        process.wait()


def _command(run_dir, args, nproc, options):
    own = ("--nproc", str(nproc), "--shards", "2", "--checkpoint-every", "6", "--log-every", "3", "--run-dir", str(run_dir))
    return [*own, *options, "--progress", "off", "train.py", *args]


def until(condition, what=lambda: ""):
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)
