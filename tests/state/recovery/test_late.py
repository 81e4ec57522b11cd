"""A disk that is slower than checkpoints fall due: they come later, at the first step they can, and
none is forgotten."""

import json

import pytest

from lockstep._events.history import read_events

pytestmark = pytest.mark.timeout(90)

HELD_UNTIL = 6
# The disk of rank 0 stands still from the first checkpoint on, until a later step. Then steps
# follow until there is another.
SCRIPT = """
import json, os, sys, threading
from pathlib import Path
import torch, lockstep
from lockstep._events.history import read_events
held_until, moves = int(sys.argv[1]), threading.Event()
team = lockstep.join()
if team.is_main:
    sync = os.fsync
    os.fsync = lambda file: (moves.wait(), sync(file))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(80_000, 4))
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
for batch in loader:
    saved = [event["step"] for event in read_events(team.run_dir) if event["event"] == "checkpoint"] if team.is_main else []
    if team.any(len(saved) > 1):
        break
    for (x,) in batch.shards:
        team.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if team.step == held_until:
        moves.set()
team.print("saved", json.dumps(saved))
"""


def test_one_that_is_due_while_the_last_is_written_is_saved_after_it(run_here, tmp_path):
    ended = run_here(SCRIPT, "--nproc", "2", "--checkpoint-every", "1", "--run-dir", "run", args=[HELD_UNTIL])
    assert ended.returncode == 0, ended.stderr
    first, then, *_ = json.loads(ended.stdout.partition("saved ")[2])
    assert first == 1
    assert then >= HELD_UNTIL
    steps = [event["step"] for event in read_events(tmp_path / "run") if event["event"] == "checkpoint"]
    assert steps[:2] == [first, then]


# The disk of the first checkpoint is slow, and the best weights are to be saved meanwhile.
BEST_MEANWHILE = """
import os, time
import torch, lockstep
sync = os.fsync
os.fsync = lambda file: (time.sleep(0.2), sync(file))
team = lockstep.join()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(24, 4))
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
for batch in loader:
    if team.step == 2:
        os.fsync = sync
        assert team.best(1.0)
    for (x,) in batch.shards:
        team.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_best_weights_are_saved_after_the_checkpoint_that_is_being_written(run_here, tmp_path):
    ended = run_here(BEST_MEANWHILE, "--checkpoint-every", "1", "--run-dir", "run")
    assert ended.returncode == 0, ended.stderr
    saved = [(event["kind"], event["step"]) for event in read_events(tmp_path / "run") if event["event"] == "checkpoint"]
    assert saved[:2] == [("checkpoint", 1), ("weights", 2)]
