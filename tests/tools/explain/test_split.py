"""What the split of a step says about a run."""

import pytest

from lockstep._events.measure.split import PARTS, bound_of, notable_wait, sentence, shares_of, verdict


def split(**seconds):
    return {**dict.fromkeys(PARTS, 0.0), **seconds}


def test_shares_are_of_the_time_of_all_ranks():
    shares = shares_of([split(forward=1.0, waiting=2.0), split(backward=3.0, data=2.0)])
    assert (shares["forward"], shares["waiting"], shares["backward"], shares["data"]) == (1 / 8, 2 / 8, 3 / 8, 2 / 8)
    assert sum(shares.values()) == pytest.approx(1)
    assert not any(shares_of([split()]).values())


@pytest.mark.parametrize(
    ("seconds", "bound", "wait", "words"),
    [
        ({"forward": 5, "backward": 4, "data": 1}, "compute", None, ("compute-bound: 90%",)),
        ({"forward": 5, "data": 4, "copy": 1}, "compute", "data", ("the loader", "40%", "loader workers")),
        ({"forward": 5, "communication": 5}, "communication", "communication", ("communication-bound: 50%",)),
        ({"forward": 4, "waiting": 6}, "waiting", "waiting", ("unbalanced: 60%", "the slowest rank")),
        ({"forward": 4, "script": 6}, "script", "script", ("script-bound: 60%",)),
        ({"forward": 4, "checkpoint": 6}, "checkpoint", "checkpoint", ("checkpoint-bound: 60%", "--checkpoint-every")),
        ({"forward": 4, "data": 2, "script": 4}, None, "script", ("other code", "40%")),
        ({"forward": 84, "data": 16}, "compute", "data", ("the loader", "16%", "loader workers")),
    ],
)
def test_a_run_is_bound_by_what_takes_half_of_its_time_and_less_is_its_longest_wait(seconds, bound, wait, words):
    shares = shares_of([split(**seconds)])
    assert (bound_of(shares), notable_wait(shares)) == (bound, wait)
    assert all(each in sentence(shares) for each in words)


def test_the_rank_that_the_others_wait_for_is_named_with_what_it_does_meanwhile():
    splits = [split(forward=6, waiting=4), split(forward=5.9, script=4, waiting=0.1), split(forward=6, waiting=4)]
    assert notable_wait(shares_of(splits)) == "waiting"
    before, whole, named = verdict(splits).partition(sentence(shares_of(splits)))
    assert (before, bool(whole)) == ("", True)
    assert "rank 1 " in named
    assert "script" in named


def test_nobody_is_named_where_ranks_wait_for_each_other_in_turn_or_something_else_is_the_bound():
    in_turn = [split(forward=7, waiting=3), split(forward=6.5, waiting=3.5)]
    assert verdict(in_turn) == sentence(shares_of(in_turn))
    bound_by_data = [split(forward=5, data=5), split(forward=3, data=5, waiting=2)]
    assert verdict(bound_by_data) == sentence(shares_of(bound_by_data))
    assert verdict(bound_by_data).startswith("data-bound: 50%")


STOPPED_EARLY = """
import time, torch, lockstep
from torch.utils.data import DataLoader, TensorDataset
team = lockstep.join(shards=1)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(TensorDataset(torch.randn(10, 3)), 2))
for epoch in team.epochs(2):
    for step, batch in enumerate(loader, 1):
        for (x,) in batch.shards:
            team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.3)
        if epoch == 0 and step == 4:
            break
"""


def test_a_few_steps_of_an_epoch_that_was_left_are_too_few_for_a_verdict(run_here):
    done = run_here(STOPPED_EARLY, "--nproc-per-node", "1")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[1] for line in done.stderr.splitlines() if line.startswith("lockstep: epoch")] == [" epoch 2"]
