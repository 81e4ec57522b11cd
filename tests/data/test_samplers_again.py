"""A run that resumes within a pass is given the indices that it would have had, or its sampler is
named in an error."""

import dataclasses
import itertools
import random
import time

import pytest
import torch
from data_helpers import Numbers, assignment
from torch.utils.data import BatchSampler, DataLoader, Sampler, SubsetRandomSampler, WeightedRandomSampler

from lockstep._base.errors import MismatchError
from lockstep._data.sources import choose_source

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
LENGTH = 12
AT_BIRTH = list(range(LENGTH))
LAUNCHES = itertools.count()


class Own(Sampler):
    def __init__(self):
        self.order = list(range(LENGTH))

    def __len__(self):
        return LENGTH

    def __iter__(self):
        return iter(random.sample(range(LENGTH), LENGTH))


class ShufflesItsList(Own):
    def __iter__(self):
        random.shuffle(self.order)
        return iter(list(self.order))


class ShufflesAListElsewhere(Own):
    elsewhere = AT_BIRTH

    def __iter__(self):
        random.shuffle(AT_BIRTH)
        return iter(list(AT_BIRTH))


class ByTheClock(Own):
    def __iter__(self):
        return iter(random.Random(time.perf_counter_ns()).sample(range(LENGTH), LENGTH))


class Batches(BatchSampler):
    """A batch sampler whose order is another in each launch."""

    def __init__(self):
        super().__init__(ByTheClock(), 3, drop_last=False)


class Weighted:
    """PyTorch's own, with other weights in each launch."""

    def __new__(cls):
        return WeightedRandomSampler([random.Random(next(LAUNCHES) + i).random() for i in range(LENGTH)], LENGTH)


class SubsetRandom:
    """PyTorch's own, of other indices in each launch."""

    def __new__(cls):
        return SubsetRandomSampler(random.Random(next(LAUNCHES)).sample(range(LENGTH), LENGTH))


class AsItGoes(Own):
    """Draws each index from the process's generator when it is asked for it."""

    def __iter__(self):
        return (int(torch.randint(LENGTH, ())) for _ in range(LENGTH))


class InBatches(BatchSampler):
    """PyTorch's own, around one that draws as it goes."""

    def __new__(cls):
        return BatchSampler(AsItGoes(), 3, drop_last=False)


def loader_of(kind, num_workers=0):
    AT_BIRTH[:] = range(LENGTH)  # as a launch begins
    sampler = kind()
    which = {"batch_sampler": sampler} if isinstance(sampler, BatchSampler) else {"sampler": sampler, "batch_size": 3}
    return DataLoader(Numbers(LENGTH), num_workers=num_workers, **which)


def one_pass(source, first, epoch, skip=0, most=None):
    taken = []
    for plan, _ in source.steps(first, epoch, skip):
        taken.append([index for micro in plan.micro_batches for index in micro.samples])
        source.taken(plan.number)
        if len(taken) == most:
            break
    return taken


def resumed(kind, num_workers, *, allows_other_data=False):
    """What the second pass of a run has behind its second step: when it was interrupted there, and
    when not."""
    place = dataclasses.replace(assignment(), allows_other_data=allows_other_data)
    source = choose_source(loader_of(kind, num_workers), place)
    one_pass(source, 1, 0)
    undisturbed = source.steps(5, 1)
    for _ in range(2):
        plan, _ = next(undisturbed)
        source.taken(plan.number)
    state = source.state(6)
    rest = [[index for micro in plan.micro_batches for index in micro.samples] for plan, _ in undisturbed]
    again = choose_source(loader_of(kind, num_workers), place)
    again.load_state(state)
    return one_pass(again, 5, 1, skip=2), rest


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [Own, ShufflesItsList, AsItGoes, InBatches])
def test_a_sampler_whose_order_comes_back_with_the_run_goes_on(kind, num_workers):
    found, expected = resumed(kind, num_workers)
    assert found == expected


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [ShufflesAListElsewhere, ByTheClock, Batches, Weighted, SubsetRandom])
def test_one_whose_order_does_not_come_back_is_refused_by_name(kind, num_workers):
    with pytest.raises(MismatchError) as refusal:
        resumed(kind, num_workers)
    assert kind.__name__ in str(refusal.value)
    assert "2 steps" in str(refusal.value)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_sampler_around_a_sampler_gives_what_the_loader_makes_of_that(num_workers):
    alone, wrapped = (
        one_pass(choose_source(loader_of(kind, num_workers), assignment()), 1, 0) for kind in (AsItGoes, InBatches)
    )
    assert wrapped == alone == one_pass(choose_source(loader_of(InBatches), assignment()), 1, 0)


def test_it_goes_on_where_other_data_are_allowed():
    found, _ = resumed(ByTheClock, 0, allows_other_data=True)
    assert len(found) == 2
