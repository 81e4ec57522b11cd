"""A run that has logged, evaluated, was killed and resumed, made by the real command: for what shows a run's values."""

import time
from contextlib import contextmanager

from real_runs import COMMAND, _end, _start
from warm import run_on

STEPS, EPOCHS = 10, 2
TRAIN = """
import argparse, os, time, torch, lockstep
parser = argparse.ArgumentParser()
parser.add_argument("--kill", type=int, default=0)
parser.add_argument("--wait", type=int, default=0)
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
torch.manual_seed(0)
team = lockstep.join()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(40, 4))
plain = torch.utils.data.DataLoader(data, 4)
model, optimizer, loader = team.prepare(model, optimizer, plain)
for epoch in team.epochs(args.epochs):
    for batch in loader:
        for (x,) in batch.shards:
            loss = model(x).square().mean()
            team.backward(loss)
            team.log(loss=loss, step=team.step)
        optimizer.step()
        optimizer.zero_grad()
        if team.step == args.kill and os.path.exists("kill"):
            os.kill(os.getpid(), 9)
        while team.step == args.wait and not os.path.exists("go"):
            time.sleep(0.05)
    with team.evaluate(model, plain) as evaluation:
        for batch in evaluation:
            for (x,) in batch.shards:
                batch.add(error=(model(x) ** 2).mean(1))
"""


def run_logged(server, place, run_dir, *args, nproc=1, kill=False, options=(), env=None):
    """The run to its end, on a fork server, in ``place``: what it printed."""
    (place / "train.py").write_text(TRAIN)
    (place / "kill").touch() if kill else (place / "kill").unlink(missing_ok=True)
    ended = run_on(server, place, command(run_dir, args, nproc, options), env={"OMP_NUM_THREADS": "1", **(env or {})})
    assert ended.returncode == (137 if kill else 0), ended.stdout + ended.stderr
    return ended


@contextmanager
def waiting(place, run_dir, *args, nproc=1):
    """A run whose ranks wait in a step until the block is left."""
    (place / "train.py").write_text(TRAIN)
    process = _start(place, [*COMMAND, "run", *command(run_dir, args, nproc, ())])
    try:
        yield process
    finally:
        _end(process)


def command(run_dir, args, nproc, options):
    own = ("--nproc", str(nproc), "--shards", "2", "--checkpoint-every", "6", "--log-every", "3", "--run-dir", str(run_dir))
    return [*own, *options, "--progress", "off", "train.py", *args]


def until(condition, what=lambda: ""):
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


__all__ = ["EPOCHS", "STEPS", "run_logged", "until", "waiting"]
