"""Checkpoints that come later than asked for, since a slow disk holds the next one up: said once, with what it takes."""

import pytest

from lockstep.state.recovery.lateness import Lateness


def warnings_of(every, begun, *, wall_s, parts_s=(), is_late=True):
    """The warnings of checkpoints that begin at these steps and times."""
    lateness, said = Lateness(every), []
    for step, now_s in begun:
        said.append(lateness.begin(step, now_s, is_late=is_late))
        lateness.written(wall_s, parts_s)
    return said


@pytest.mark.parametrize(("every", "apart"), [(20, "every 580 steps, not every 20."), ("10s", "every 35 s, not every 10s.")])
def test_an_interval_that_becomes_longer_is_said_once_with_the_reason(every, apart):
    first, warning, *others = warnings_of(every, [(20, 0.0), (600, 35.0), (1180, 70.0)], wall_s=34.0)
    assert first == ""
    assert warning.startswith("a checkpoint takes 34 s, and the next begins only when it is written: ")
    assert apart in warning
    assert others == [""]


@pytest.mark.parametrize(("parts_s", "named"), [((0.4, 33.0, 0.6), True), ((33.0, 34.0, 33.0), False), ((34.0,), False)])
def test_the_rank_that_writes_its_part_for_longer_than_the_others_is_named(parts_s, named):
    _, warning = warnings_of(20, [(20, 0.0), (600, 35.0)], wall_s=34.0, parts_s=parts_s)
    assert ("Rank 1 writes its part for 33 s, the others for 0.5 s." in warning) is named


@pytest.mark.parametrize(
    ("every", "begun", "wall_s", "is_late"),
    [
        (20, [(20, 0.0), (40, 35.0)], 34.0, False),  # as asked for
        (20, [(20, 0.0), (30, 35.0)], 34.0, True),  # one that was asked for otherwise, before it was due
        (20, [(20, 0.0), (100, 0.5)], 0.4, True),  # the steps are quick
        (20, [(20, 0.0), (600, 350.0)], 4.0, True),  # something else held it up
        ("off", [(20, 0.0), (600, 35.0)], 34.0, True),
    ],
)
def test_nothing_is_said_of(every, begun, wall_s, is_late):
    assert warnings_of(every, begun, wall_s=wall_s, is_late=is_late) == ["", ""]


SCRIPT = """
import os, time
import torch, lockstep
team = lockstep.join()
sync = os.fsync
if team.rank == 1:
    os.fsync = lambda file: (time.sleep(2.5), sync(file))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(1280, 4))
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
for batch in loader:
    for (x,) in batch.shards:
        team.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
"""


@pytest.mark.long
def test_a_rank_with_a_slow_disk_is_named_and_how_far_apart_checkpoints_are(run_here):
    ended = run_here(SCRIPT, "--nproc", "2", "--checkpoint-every", "2")
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "a checkpoint takes" in line]
    assert ", not every 2. " in line
    assert "Rank 1 writes its part" in line
