"""Promises about sources: every index once an epoch, the same shards for every number of
processes."""

import itertools
import random

import numpy
import pytest
import torch
from codes import raises
from data_helpers import (
    Noisy,
    NoisyStream,
    Numbers,
    Stream,
    assignment,
    deal_all,
    epoch_of,
    noisy_collate,
    same,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from lockstep._base.errors import DataError
from lockstep._data.sources import choose_source

pytestmark = pytest.mark.timeout(60)
WORLDS = (1, 2, 3, 5)


def loader(length=23, batch_size=8, dataset=None, **options):
    return DataLoader(dataset if dataset is not None else Numbers(length), batch_size, collate_fn=list, **options)


def flat(batches):
    return [sample for batch in batches for sample in batch]


# Each index once


@settings(deadline=None, max_examples=120)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 8), st.data())
def test_every_index_is_used_once_an_epoch_whatever_the_sizes(length, batch_size, shards, data):
    world_size = data.draw(st.integers(1, shards))
    seen, (one, two) = deal_all(lambda: loader(length, batch_size, shuffle=True), world_size, shards, epochs=2)
    assert one == two == -(-length // batch_size)
    first, second = flat(epoch_of(seen, 1, one)), flat(epoch_of(seen, one + 1, two))
    assert sorted(first) == sorted(second) == list(range(length))
    alone, _ = deal_all(lambda: loader(length, batch_size, shuffle=True), 1, shards, epochs=2)
    assert alone == seen


def test_epochs_are_shuffled_differently_and_seeds_and_loaders_too():
    orders = [
        tuple(flat(epoch_of(deal_all(lambda: loader(shuffle=True), 1, 2, epochs=3, **place)[0], first, 3)))
        for place in ({}, {"seed": 1}, {"loader": 2})
        for first in (1, 4, 7)
    ]
    assert len(set(orders)) == 9
    assert all(sorted(order) == list(range(23)) for order in orders)


@pytest.mark.parametrize(("length", "steps"), [(23, 2), (24, 3), (7, 0)])
def test_drop_last_drops_the_ragged_global_batch_and_not_a_ragged_shard(length, steps):
    seen, counted = deal_all(lambda: loader(length, 8, drop_last=True), 2, 3)
    assert counted == [steps]
    assert sorted(flat(seen.values())) == list(range(steps * 8))
    assert choose_source(loader(length, 8, drop_last=True), assignment(0, 2, 3)).num_steps() == steps


# Samplers


class Lazy(Sampler):
    """Draws each index when it is asked for, from a global generator."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 20

    def __iter__(self):
        return (self.draw() for _ in range(20))


LAZY = {
    "random": lambda: Lazy(lambda: random.randrange(23)),
    "numpy": lambda: Lazy(lambda: int(numpy.random.randint(23))),
    "torch": lambda: Lazy(lambda: int(torch.randint(23, ()))),
}
SAMPLERS = {
    "sequential": lambda: SequentialSampler(range(23)),
    "random": lambda: RandomSampler(range(23)),
    "random with replacement": lambda: RandomSampler(range(23), replacement=True, num_samples=70),
    "random with more samples": lambda: RandomSampler(range(23), num_samples=70),
    "random with a generator": lambda: RandomSampler(range(23), generator=torch.Generator().manual_seed(4)),
    "subset": lambda: SubsetRandomSampler([3, 5, 7, 11, 13]),
    "weighted": lambda: WeightedRandomSampler([1.0, 2.0, 3.0] * 7, 30),
    "weighted with a generator": lambda: WeightedRandomSampler([1.0, 2.0], 9, generator=torch.Generator()),
    "a list": lambda: [4, 2, 0, 2],
    **LAZY,
}


@pytest.mark.parametrize(("name", "num_workers"), [*((name, 0) for name in SAMPLERS), ("random", 2), ("numpy", 2)])
def test_any_sampler_gives_the_same_shards_on_every_world_size_and_with_workers(name, num_workers):
    def build(workers=0):
        return DataLoader(Noisy(23), 4, sampler=SAMPLERS[name](), collate_fn=noisy_collate, num_workers=workers)

    alone, counted = deal_all(build, 1, 3, epochs=2)
    other, again = deal_all(lambda: build(num_workers), 1 if num_workers else 3, 3, epochs=2)
    assert counted == again
    assert alone.keys() == other.keys()
    assert all(same(alone[key], other[key]) for key in alone)


class Buckets:
    """A batch sampler of batches of different sizes, some of them empty, with an order of its
    own."""

    sizes = (5, 0, 1, 2, 9)

    def __len__(self):
        return len(self.sizes)

    def __iter__(self):
        order = iter(torch.randperm(sum(self.sizes)).tolist())
        return (list(itertools.islice(order, size)) for size in self.sizes)


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_batch_sampler_is_kept_also_where_its_batches_are_small_or_empty(world_size):
    def build():
        return DataLoader(Numbers(17), batch_sampler=Buckets(), collate_fn=list)

    seen, counted = deal_all(build, world_size, 5, epochs=2)
    assert counted == [4, 4]
    assert seen == deal_all(build, 1, 5, epochs=2)[0]
    assert sorted(flat(epoch_of(seen, 1, 4))) == list(range(17))
    assert [sum(len(b) for (step, _), b in seen.items() if step == s) for s in range(1, 5)] == [5, 1, 2, 9]


def test_batch_samplers_may_yield_tensors_and_tuples():
    for batches in ([torch.tensor([0, 1, 2])], [(0, 1, 2)], [numpy.arange(3)]):
        seen, _ = deal_all(lambda b=batches: DataLoader(Numbers(3), batch_sampler=b, collate_fn=list), 2, 2)
        assert sorted(flat(seen.values())) == [0, 1, 2]


class Epochal(Numbers):
    epoch = "unset"

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return self.epoch


class EpochalSampler(SequentialSampler):
    epoch = "unset"

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([self.epoch] * 4)


@pytest.mark.parametrize("num_workers", [1])
def test_set_epoch_is_called_on_data_sets_samplers_and_what_they_wrap(num_workers):
    sampler = EpochalSampler(range(4))
    for build in (
        lambda: DataLoader(Epochal(4), 4, collate_fn=list, num_workers=num_workers),
        lambda: DataLoader(Numbers(9), 4, sampler=sampler, collate_fn=list, num_workers=num_workers),
        lambda: DataLoader(Numbers(9), batch_sampler=BatchSampler(sampler, 4, False), collate_fn=list),
    ):
        seen, _ = deal_all(build, 1, 1, epochs=3)
        assert list(seen.values()) == [[0] * 4, [1] * 4, [2] * 4]


def test_a_distributed_sampler_is_refused_with_the_remedy_wherever_it_hides():
    sampler = DistributedSampler(range(9), num_replicas=2, rank=0)
    for refused in (
        DataLoader(Numbers(9), 4, sampler=sampler),
        DataLoader(Numbers(9), batch_sampler=BatchSampler(sampler, 4, False)),
        DataLoader(Numbers(9), batch_size=None, sampler=sampler),
    ):
        with pytest.raises(DataError, match=r"DistributedSampler.*shuffle=True"):
            choose_source(refused, assignment())


# Random numbers in user code


@pytest.mark.parametrize("num_workers", [0, 2])
def test_persistent_workers_serve_epochs_as_new_ones_do(num_workers):
    options = {"persistent_workers": True} if num_workers else {}

    def build():
        return DataLoader(Noisy(14), 4, shuffle=True, collate_fn=noisy_collate, num_workers=num_workers, **options)

    expected, _ = deal_all(lambda: DataLoader(Noisy(14), 4, shuffle=True, collate_fn=noisy_collate), 1, 2, epochs=3)
    seen, _ = deal_all(build, 1, 2, epochs=3)
    assert all(same(seen[key], expected[key]) for key in expected)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_an_epoch_left_early_does_not_change_the_next(options):
    source = choose_source(DataLoader(Noisy(40), 4, shuffle=True, collate_fn=noisy_collate, **options), assignment(0, 1, 2))
    left = source.steps(1, 0)
    for _ in range(3):
        next(left)
    left.close()
    expected = choose_source(DataLoader(Noisy(40), 4, shuffle=True, collate_fn=noisy_collate), assignment(0, 1, 2))
    assert same([data for _, data in source.steps(4, 1)], [data for _, data in expected.steps(4, 1)])


# Streams


class SelfSplitting(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter(range(10)) if info is None else iter(range(info.id, 10, info.num_workers))


@pytest.mark.parametrize(("kind", "num_workers"), [(NoisyStream, 0), (NoisyStream, 2)])
def test_of_a_stream_every_sample_is_used_once_by_any_number_of_workers(kind, num_workers):
    collate = list if kind is Stream else noisy_collate

    def build(workers=0):
        return DataLoader(kind(10), 4, collate_fn=collate, num_workers=workers)

    alone, counted = deal_all(build, 1, 3, epochs=2)
    assert counted == [3, 3]
    for world_size in (1,) if num_workers else WORLDS[:3]:
        seen, _ = deal_all(lambda: build(num_workers), world_size, 3, epochs=2)
        assert seen.keys() == alone.keys()
        assert all(same(seen[key], alone[key]) for key in alone)
    first = epoch_of(alone, 1, 3)
    numbers = flat(first) if kind is Stream else torch.cat([b[0][:, 0] for b in first]).tolist()
    assert numbers == list(range(10))


def test_a_stream_with_a_ragged_end_drops_it_if_asked_and_knows_no_length():
    assert deal_all(lambda: DataLoader(Stream(10), 4, collate_fn=list, drop_last=True), 3, 3)[1] == [2]
    with pytest.raises(TypeError):
        choose_source(DataLoader(Stream(10), 4), assignment()).num_steps()


def test_a_stream_may_hold_none_and_split_itself_by_worker():
    class Nones(IterableDataset):
        def __iter__(self):
            return iter([None, 1, None])

    assert flat(deal_all(lambda: DataLoader(Nones(), 2, collate_fn=list), 1, 1)[0].values()) == [None, 1, None]
    seen, _ = deal_all(lambda: DataLoader(SelfSplitting(), 4, collate_fn=list, num_workers=2), 1, 2)
    assert sorted(flat(seen.values())) == list(range(10))


class EpochalStream(IterableDataset):
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([self.epoch] * 2)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_stream_learns_of_the_epoch(options):
    seen, _ = deal_all(lambda: DataLoader(EpochalStream(), 2, collate_fn=list, **options), 1, 1, epochs=3)
    assert list(seen.values()) == [[0, 0], [1, 1], [2, 2]]


# Ready batches


def ready(sizes=(5, 1, 0, 8)):
    numbers = iter(range(sum(sizes)))
    return [torch.tensor([next(numbers) for _ in range(size)], dtype=torch.int64) for size in sizes]


class Prefetching(DataLoader):
    """A subclass that makes its batches in its own way."""

    def __iter__(self):
        return iter([torch.arange(4), torch.arange(4, 6)])


@pytest.mark.parametrize("world_size", WORLDS)
def test_ready_batches_are_cut_into_shards_and_empty_ones_are_no_step(world_size):
    seen, counted = deal_all(ready, world_size, 5, epochs=2)
    assert counted == [3, 3]
    assert torch.equal(torch.cat(epoch_of(seen, 1, 3)), torch.arange(14))
    assert torch.equal(torch.cat(epoch_of(seen, 4, 3)), torch.arange(14))
    sizes = [[len(seen[step, shard]) for shard in range(5) if (step, shard) in seen] for step in (1, 2, 3)]
    assert sizes == [[1] * 5, [1], [2, 2, 2, 1, 1]]


def test_a_loader_that_iterates_in_its_own_way_is_taken_at_its_word():
    seen, counted = deal_all(lambda: Prefetching(Numbers(100), 10), 2, 2)
    assert counted == [2]
    assert torch.equal(torch.cat(list(epoch_of(seen, 1, 2))), torch.arange(6))


def test_a_generator_is_refused_because_the_second_epoch_would_be_empty():
    with pytest.raises(DataError, match="a generator can be read"):
        choose_source((batch for batch in ready()), assignment())
    with raises(DataError, "loader-read-once"):
        choose_source(iter(ready()), assignment())


class StartsOver:
    """Keeps its place itself, and returns to its beginning in ``__iter__``."""

    def __iter__(self):
        self.batches = iter(ready())
        return self

    def __next__(self):
        return next(self.batches)


class GoesOn(StartsOver):
    def __init__(self):
        super().__iter__()

    def __iter__(self):
        """Itself."""
        return self


def test_an_iterator_of_the_script_that_starts_over_is_read_in_each_epoch_and_one_that_goes_on_is_refused():
    seen, counted = deal_all(StartsOver, 2, 2, epochs=2)
    assert counted == [3, 3]
    assert torch.equal(torch.cat(epoch_of(seen, 4, 3)), torch.arange(14))
    with pytest.raises(DataError, match="GoesOn"):
        choose_source(GoesOn(), assignment())
    with raises(DataError, "loader-read-once"):
        choose_source(iter(DataLoader(Numbers(4))), assignment())


def test_a_ready_batch_that_cannot_be_cut_is_refused_when_it_comes():
    source = choose_source([{"text": "abc"}], assignment(0, 1, 2))
    with raises(DataError, "batch-without-tensor"):
        list(source.steps(1, 0))


# Steps without samples of this process


@pytest.mark.parametrize("batches", [Buckets(), [[0], [1]]])
def test_every_process_has_every_step_also_those_without_samples_of_its_own(batches):
    sizes = [size for size in map(len, batches) if size]
    for rank in range(5):
        source = choose_source(DataLoader(Numbers(17), batch_sampler=batches, collate_fn=list), assignment(rank, 5, 5))
        plans = [plan for plan, _ in source.steps(1, 0)]
        assert [(plan.number, plan.num_samples) for plan in plans] == list(enumerate(sizes, 1))
        assert [bool(plan.micro_batches) for plan in plans] == [size > rank for size in sizes]


# What is said of them


def test_what_must_be_equal_on_all_ranks_is_described():
    lines = choose_source(loader(23, 8, shuffle=True), assignment()).describe()
    assert lines == [
        "samples of Numbers",
        "sampler RandomSampler, batch sampler BatchSampler",
        "batch_size=8, drop_last=False",
        "data set of length 23",
        "global batches of length 3",
    ]
    assert "data set of unknown length" in choose_source(DataLoader(Stream(3), 2), assignment()).describe()
    assert choose_source(ready(), assignment()).describe() == ["ready batches of list", "global batches of length 4"]
    assert choose_source(DataLoader(TensorDataset(torch.arange(3)), batch_size=None), assignment()).num_steps() == 3


# Accumulated


def test_a_subset_tells_which_samples_it_has_so_that_no_other_split_resumes_the_run():
    def lines(indices):
        return choose_source(DataLoader(Subset(Numbers(8), indices), 4), assignment()).describe_samples()

    assert lines([1, 2, 3]) == lines(torch.tensor([1, 2, 3])) == lines(range(1, 4)) != lines([1, 2, 4])
