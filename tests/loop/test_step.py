"""Promises of a step about its loops over shards, of which some follow another."""

import itertools

import pytest

from lockstep._data.batch import Batch, Shards
from lockstep._loop.step import Step
from lockstep._plan.blocks import blocks_of
from lockstep._plan.shards import plan_step

pytestmark = pytest.mark.timeout(10)


def opened(step, leads):
    """A loop over the shards of a batch, which leads its phase, follows that of another, or has not
    begun (None)."""
    batch = Batch(step.plan, [], None, None)
    shards = Shards(batch, None, None)
    shards._leader = None if leads is None else batch if leads else Batch(step.plan, [], None, None)
    shards._has_finished = leads is True
    step.opened.append(shards)
    return shards


def plan(num_samples, sizes=(1, 1, 1)):
    return plan_step(1, (num_samples,), 0, blocks_of(sizes))


@pytest.mark.parametrize("follows", [*itertools.product([False, True], repeat=3)])
def test_ranks_without_samples_learn_which_loops_followed(follows):
    with_samples, without = Step(plan(2)), Step(plan(2))
    for step in (with_samples, without):
        opened(step, leads=True)
    told = [opened(with_samples, leads=False if each else None) for each in follows]
    heard = [opened(without, leads=None) for _ in follows]
    followers = with_samples.followers(with_samples.plan)
    for step in (with_samples, without):
        step.end_following(followers, {"loss": 0.5})
    for shards in (told, heard):
        assert [each.is_over for each in shards] == list(follows)
        assert [each.batch.values for each in shards] == [{"loss": 0.5} if each else {} for each in follows]
    assert [len(step.opened) for step in (with_samples, without)] == [follows.count(False)] * 2


def test_where_every_rank_has_samples_nothing_is_reported():
    step = Step(plan(3))
    opened(step, leads=True)
    opened(step, leads=False)
    assert step.followers(step.plan) == 0
    step.end_following(0, {"loss": 0.5})
    assert step.opened == []
