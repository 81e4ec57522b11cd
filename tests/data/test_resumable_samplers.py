"""A resumable loader goes on with what its samplers remember: generators, and attributes that
change while, or after, indices are drawn."""

import random

import numpy
import pytest
import torch
from data_helpers import Numbers, run_ahead, same
from hypothesis import given, settings
from hypothesis import strategies as st
from test_resumable import numbers, train, world_of
from torch.utils.data import BatchSampler, DataLoader, Sampler, WeightedRandomSampler

import lockstep
from lockstep._data.fetch import FetchPool
from lockstep._data.portable import from_portable, to_portable
from lockstep._world.comm.plain import pack, unpack

pytestmark = pytest.mark.timeout(60)


class Own(Sampler):
    """A numpy generator that goes on from pass to pass, and a position that is an attribute."""

    def __init__(self, num_samples):
        self.num_samples, self.generator, self.passes = num_samples, numpy.random.default_rng(5), 0

    def __len__(self):
        return self.num_samples

    def __iter__(self):
        self.passes += 1
        return iter(((self.generator.permutation(self.num_samples) + self.passes) % self.num_samples).tolist())


class ByRandom(Own):
    def __init__(self, num_samples):
        super().__init__(num_samples)
        self.generator = random.Random(5)

    def __iter__(self):
        return iter(self.generator.sample(range(self.num_samples), self.num_samples))


class Lazy(Own):
    """Draws one index after another."""

    def __iter__(self):
        return (int(self.generator.integers(self.num_samples)) for _ in range(self.num_samples))


class GoesOn(Own):
    """Goes on where it was, in the next pass too."""

    def __iter__(self):
        for _ in range(self.num_samples):
            self.passes += 1
            yield (7 * self.passes + self.passes // 30) % self.num_samples


class MadeLate(Own):
    """Makes an attribute, and items of a dict, in the middle of a pass."""

    def __init__(self, num_samples):
        super().__init__(num_samples)
        self.items = {}

    def __iter__(self):
        for number in range(self.num_samples):
            if number == 16:
                self.late = getattr(self, "late", 0) + 1
                self.items[self.late] = 5
            yield (7 * number + getattr(self, "late", 0) + sum(self.items.values())) % self.num_samples


class ChangedAtTheEnd(Own):
    """Changes behind its last index, which workers have drawn long before the loop is there."""

    def __iter__(self):
        yield from super().__iter__()
        self.passes += int(self.generator.integers(100))


SAMPLERS = {
    "generator": lambda: {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "weighted": lambda: {"batch_size": 4, "sampler": WeightedRandomSampler(torch.arange(1.0, 31), 30)},
    "numpy": lambda: {"batch_size": 4, "sampler": Own(30)},
    "random": lambda: {"batch_size": 4, "sampler": ByRandom(30)},
    "lazy": lambda: {"batch_size": 4, "sampler": Lazy(30)},
    "goes on": lambda: {"batch_size": 4, "sampler": GoesOn(30)},
    "made late": lambda: {"batch_size": 4, "sampler": MadeLate(30)},
    "at the end": lambda: {"batch_size": 4, "sampler": ChangedAtTheEnd(30), "drop_last": True},
    "batches": lambda: {"batch_sampler": BatchSampler(Own(30), 4, drop_last=True)},
}


@pytest.mark.parametrize("stop", [3, 7, 8, 11])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_what_samplers_remember_is_in_the_state_however_far_ahead_indices_are_drawn(kind, stop, monkeypatch):
    def make():
        return DataLoader(Numbers(30), **SAMPLERS[kind]())

    expected, _ = train(make, 1, 4)
    assert len({str([batch for epoch, batch in expected if epoch == number]) for number in range(4)}) == 4
    monkeypatch.setattr(FetchPool, "run", run_ahead)
    found, state = train(make, 2, 4, stop=stop)
    taken, state = train(make, 4, 4, stop=stop, state=state)
    assert same(world_of(make, 3, state)[2].state_dict(), state), "a state that was loaded is saved as another"
    assert found + taken + train(make, 1, 4, state=state)[0] == expected


class Unreadable(Numbers):
    def __getitem__(self, index):
        if index == 13:
            raise ValueError(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", ["numpy", "lazy", "goes on"])
def test_behind_an_error_of_the_data_samplers_are_where_a_plain_loop_leaves_them(kind, monkeypatch):
    plain = DataLoader(Unreadable(30), **SAMPLERS[kind]())
    with pytest.raises(ValueError, match="13"):
        list(plain)
    expected = [*plain.batch_sampler]
    loader = lockstep.resumable(DataLoader(data := Unreadable(30), **SAMPLERS[kind]()))
    monkeypatch.setattr(FetchPool, "run", run_ahead)
    with pytest.raises(lockstep.DataError):
        list(loader)
    data.__class__ = Numbers  # as a script that has replaced the file
    loader.set_epoch(1)
    assert list(map(numbers, loader)) == expected


@pytest.mark.parametrize("kind", ["generator", "numpy", "batches"])
def test_a_host_that_counts_epochs_goes_on_with_what_samplers_remember(kind):
    def make():
        return DataLoader(Numbers(30), **SAMPLERS[kind]())

    expected, _ = train(make, 1, 2)
    half = len(expected) // 2
    _, state = train(make, 2, 2, stop=half)
    [loader] = world_of(make, 1, state)
    before = torch.get_rng_state(), random.getstate()
    loader.set_epoch(1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1], "the random numbers of the script are others now"
    assert [(1, numbers(batch)) for batch in loader] == expected[half:]


@pytest.mark.parametrize("part", ["step", "now"])
def test_a_state_of_which_a_part_is_missing_is_refused(part):
    """As where it is loaded into the structure of a new loader's, by
    torch.distributed.checkpoint."""

    def make():
        return DataLoader(Numbers(30), **SAMPLERS["numpy"]())

    _, state = train(make, 2, 2, stop=3)
    del state["source"]["indices"][part]
    with pytest.raises(lockstep.MismatchError):
        world_of(make, 2, state)


LEAVES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.text(max_size=3),
    st.none(),
    st.binary(max_size=3).map(lambda data: numpy.frombuffer(data, numpy.uint8).copy()),
    st.binary(max_size=3).map(lambda data: torch.tensor(list(data), dtype=torch.uint8)),
)
TREES = st.recursive(
    LEAVES,
    lambda trees: st.one_of(
        st.lists(trees, max_size=3), st.lists(trees, max_size=3).map(tuple), st.dictionaries(st.text(max_size=2), trees)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_a_state_of_any_form_is_read_by_a_restricted_reader_as_it_was(state):
    assert same(from_portable(unpack(pack(to_portable(state)))), state)
