"""A shard that is repeated as a dry run leaves everything as it was, whatever the body changes, and
wherever it is repeated or left."""

import copy
import random

import numpy as np
import pytest
import torch
from codes import raises
from one_process import Noting, Process
from torch import nn
from torch.utils.checkpoint import checkpoint

from lockstep._base.errors import UsageError
from lockstep._data.batch import own_micro_batches
from lockstep._listener import Listener
from lockstep._loop.dry_runs import DryRuns
from lockstep._prepare.per_shard import PerShard
from lockstep._state.checkpoint.tree import take_apart
from lockstep._state.recovery.run_state import RunState

pytestmark = [pytest.mark.timeout(30), pytest.mark.usefixtures("one_thread")]


class Training(Process):
    """A training that repeats its last shard ``before`` or ``after`` the shards that count, or
    never."""

    def __init__(self, sizes, strategy, body, repeats=""):
        super().__init__(sizes, strategy)
        self.norm = nn.BatchNorm1d(1)
        self.norm.register_buffer("more", torch.zeros(2))
        self.norm.register_buffer("none", None)
        self.add(self.norm)
        state = RunState()
        self.carried = PerShard("carried", {"a": [torch.zeros(1)]}, self.phases, self, lambda: self.blocks, take_apart, ())
        state.register("carried", self.carried)
        self.dry_runs, self.repeats, self.body, self.dry = (
            DryRuns(self.phases, self.phases.parts.strategy, state),
            repeats,
            body,
            [],
        )
        self.heard = Noting()
        if repeats:
            self.phases.micro_batches = self.micro_batches

    size = 1  # as the collectives of one process

    def micro_batches(self, plan, data, leads):
        runs = list(own_micro_batches(plan, data, leads))
        if self.repeats == "before":
            yield from self.repeated(runs)
        yield from runs
        if self.repeats == "after":
            yield from self.repeated(runs)

    def repeated(self, runs):
        shard = runs[-1][0].shard
        with self.dry_runs.of_shard(shard, copy.deepcopy(self.dry_runs.carried(shard)), self.heard):
            yield from (run for run in runs if run[0].shard == shard)

    def steps(self, number):
        """What there is to see after each step, with a gradient that is kept from step to step."""
        seen = []
        for _ in range(number):
            batch = self.batch()
            for x in batch.shards:
                self.dry.append(self.phases.is_dry_run)
                self.body(self, x)
            self.phases.end_step()
            seen.append(self.seen())
        return seen

    def within(self):
        """What a running shard has."""
        return {name: str(value) for name, value in self.norm.named_buffers()}, str(self.carried.value)

    def seen(self):
        parameters = [*self.model.parameters(), *self.norm.parameters()]
        return {
            "gradients": [None if p.grad is None else p.grad.tolist() for p in parameters],
            "buffers": {name: value.tolist() for name, value in self.norm.named_buffers()},
            "carried": [str(self.carried.of(shard)) for shard in range(self.phases.num_shards)],
            "drawn": [random.random(), float(np.random.rand()), float(torch.rand(()))],
            "events": len(self.noting.events),
        }


def normed(process, x):
    process.phases.backward(process.norm(process.model(x)).square().mean() + process.model(x).mean(), None, None, {})


def in_place(process, x):
    process.norm.more.add_(x.sum())


def through_data(process, x):
    process.norm.more.data.add_(x.sum())


def assigned(process, x):
    process.norm.more = process.norm.more * 0.5 + x.sum()


def given(process, x):
    process.norm.none = x.sum() if process.norm.none is None else process.norm.none + x.sum()


def taken(process, x):
    process.norm.more, process.norm.none = process.norm.none, process.norm.more


def kept(process, x):
    process.carried.value = {"a": [process.carried.value["a"][0] + x.sum()]}


def kept_in_place(process, x):
    process.carried.value["a"][0].add_(x.sum())
    process.carried.value["a"].append(int(x.sum()))


def drawing(process, x):
    process.backward(x * (random.random() + float(np.random.rand()) + float(torch.rand(()))))


def recomputed(process, x):
    def count(x):
        process.norm.more = process.norm.more + 1.0
        return process.norm(process.model(x)) * 2.0

    process.phases.backward(checkpoint(count, x, use_reentrant=False).square().mean(), None, None, {})


def twice(process, x):
    process.backward(x)
    process.backward(2.0 * x)


BODIES = [normed, in_place, through_data, assigned, kept, kept_in_place, drawing, recomputed, twice]
ALONE = [given, taken]  # of several shards such changes of buffers cannot be combined
CASES = [
    *((body, sizes, strategy) for body in BODIES for sizes in ((1,), (2,)) for strategy in ("single", "exact")),
    *((body, (1,), "single") for body in ALONE),
]


@pytest.mark.parametrize("repeats", ["before", "after"])
@pytest.mark.parametrize(("body", "sizes", "strategy"), CASES)
def test_a_repeated_shard_changes_nothing(body, sizes, strategy, repeats):
    repeated = Training(sizes, strategy, body, repeats)
    assert repeated.steps(2) == Training(sizes, strategy, body).steps(2)
    own = [False] * sum(sizes)
    assert repeated.dry == 2 * ([True, *own] if repeats == "before" else [*own, True])
    assert repeated.heard.events
    assert Listener.abandon_step.__name__ not in repeated.heard.events


@pytest.mark.parametrize(("body", "sizes", "strategy"), CASES)
def test_one_that_is_repeated_before_it_counts_finds_and_leaves_what_it_does_then(body, sizes, strategy):
    found = []

    def noting(process, x):
        before = process.within()
        body(process, x)
        found.append((process.phases.is_dry_run, before, process.within()))

    Training(sizes, strategy, noting, "before").steps(2)
    assert len(found) == 2 * (1 + sum(sizes))
    for step in (found[: len(found) // 2], found[len(found) // 2 :]):
        assert [is_dry_run for is_dry_run, *_ in step] == [True] + [False] * sum(sizes)
        assert step[0][1:] == step[-1][1:]


@pytest.mark.parametrize(("body", "sizes", "strategy"), CASES)
def test_one_that_is_left_changes_nothing(body, sizes, strategy):
    def leaves(process, x):
        body(process, x)
        if process.phases.is_dry_run and process.phases.step == 2:
            raise InterruptedError

    training = Training(sizes, strategy, leaves, "before")
    [before] = training.steps(1)
    with pytest.raises(InterruptedError):
        training.steps(1)
    training.phases.leave_step(failed=False)
    assert training.heard.events[-1] == Listener.abandon_step.__name__
    after = training.seen()
    for what in ("gradients", "buffers", "carried"):
        assert after[what] == before[what], what
    training.body = body
    [then] = training.steps(1)
    expected = Training(sizes, strategy, body).steps(2)[1]
    assert {**then, "events": expected["events"]} == expected


def changed(process, x):
    process.model.weight.data.add_(1.0)


def changed_beside(process, x):
    process.norm.bias.data.add_(1.0)


def slowed(process, x):
    process.optimizer.param_groups[-1]["lr"] *= 0.5


@pytest.mark.parametrize("repeats", ["before", "after"])
@pytest.mark.parametrize("body", [changed, changed_beside, slowed])
def test_what_one_would_change_for_the_second_time_is_refused(body, repeats):
    """A single shard may change it."""
    training, plain = (Training((1,), "single", body, how) for how in (repeats, ""))
    for process in (training, plain):
        process.optimizer = torch.optim.SGD(process.norm.parameters(), lr=0.1)
        process.phases.trained.add_optimizer(process.optimizer)
    plain.steps(1)
    with raises(UsageError, "changed-in-audit"):
        training.steps(1)
