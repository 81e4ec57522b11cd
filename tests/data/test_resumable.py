"""A resumable loader gives each sample of an epoch once, in one order, on any numbers of ranks and
workers before and after.

All ranks of a world are in this process, but for what they tell one another: see
test_resumable_ranks.py."""

import io
import random
from collections import Counter

import numpy
import pytest
import torch
from data_helpers import Noisy, NoisyStream, Numbers, prepared, same
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_kinds import NUM_SAMPLES, OTHERWISE, REPEATING, missing
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

import lockstep

# WebDataset's
pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")]


def world_of(make, world_size, state=None, **options):
    """The loaders of all ranks, behind a state that was saved and read as scripts do it."""
    loaders = [lockstep.resumable(make(), rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    if state is not None:
        file = io.BytesIO()
        torch.save(state, file)
        for loader in loaders:
            file.seek(0)
            loader.load_state_dict(torch.load(file, weights_only=True))
    return loaders


def numbers(batch):
    return batch.tolist() if isinstance(batch, torch.Tensor) else list(batch)


def train(make, world_size, num_epochs, stop=None, state=None, **options):
    """``[(epoch, global batch)]`` of a loop over all epochs that are left, and the state after
    ``stop`` steps, or at the end.

    Samples that a rank is given with a weight of 0 are left out.
    """
    loaders = world_of(make, world_size, state, **options)
    taken = []
    if stop == 0:
        return taken, state or loaders[0].state_dict()
    for epoch in range(loaders[0].epoch, num_epochs):
        for parts in zip(*loaders, strict=True):  # equally many iterations on every rank
            assert {loader.epoch for loader in loaders} == {epoch}
            assert all(len(part) for part in parts), "DDP needs a sample on every rank"
            weighted = zip(parts, [loader.weight for loader in loaders], strict=True)
            taken.append((epoch, [number for part, weight in weighted if weight for number in numbers(part)]))
            if len(taken) == stop:
                break
        else:
            continue
        break
    states = [loader.state_dict() for loader in loaders]
    assert all(same(states[0], other) for other in states), "the ranks have different states"
    return taken, states[0]


def shuffled(num_samples=30, batch_size=4, **options):
    return lambda: DataLoader(Numbers(num_samples), batch_size, shuffle=True, **options)


@settings(max_examples=40, deadline=None)
@given(
    num_samples=st.integers(1, 25),
    batch_size=st.integers(1, 9),
    worlds=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    stops=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    drop_last=st.booleans(),
)
def test_killed_anywhere_and_resumed_anywhere_it_goes_on_in_the_same_order(
    num_samples, batch_size, worlds, stops, drop_last
):
    make = shuffled(num_samples, batch_size, drop_last=drop_last)
    expected, _ = train(make, 1, 3)
    found, state = [], None
    for world_size, stop in zip(worlds[:-1], stops, strict=False):
        taken, state = train(make, world_size, 3, stop=stop, state=state)
        found += taken
    found += train(make, worlds[-1], 3, state=state)[0]
    assert found == expected
    if not drop_last:
        assert Counter(number for epoch, batch in found for number in batch) == dict.fromkeys(range(num_samples), 3)


@pytest.mark.parametrize("epoch_end", [9, 10, 11])
def test_workers_that_have_fetched_ahead_are_not_in_the_state(epoch_end):
    """120 samples in batches of 12."""
    expected, _ = train(shuffled(120, 12), 1, 2)
    found, state = train(shuffled(120, 12, num_workers=2), 2, 2, stop=epoch_end)
    assert found + train(shuffled(120, 12), 3, 2, state=state)[0] == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_the_number_of_workers_may_change_with_that_of_ranks(persistent):
    expected, _ = train(shuffled(), 1, 3)
    found, state = train(shuffled(), 3, 3, stop=10)
    found += train(shuffled(num_workers=2, persistent_workers=persistent), 2, 3, state=state)[0]
    assert found == expected


@pytest.mark.parametrize("kind", REPEATING)
def test_a_stream_or_ready_batches_go_on_on_other_numbers_of_ranks(kind, tmp_path, require):
    needed = missing(kind)
    require(needed, f"{needed} is not installed" if needed else None)
    expected, _ = train(lambda: REPEATING[kind](tmp_path), 1, 2)
    found, state = train(lambda: REPEATING[kind](tmp_path), 2, 2, stop=3)
    taken, state = train(lambda: REPEATING[kind](tmp_path), 3, 2, stop=8, state=state)
    found += taken + train(lambda: REPEATING[kind](tmp_path), 1, 2, state=state)[0]
    assert found == expected
    assert Counter(number for _, batch in found for number in batch) == dict.fromkeys(range(NUM_SAMPLES), 2)


@pytest.mark.parametrize("kind", ["shuffled by the system", "ready, no data set, by the system"])
def test_a_stream_that_does_not_repeat_itself_is_refused(kind, tmp_path):
    _, state = train(lambda: OTHERWISE[kind](tmp_path), 1, 2, stop=3)
    with pytest.raises(lockstep.MismatchError) as refusal:
        train(lambda: OTHERWISE[kind](tmp_path), 1, 2, state=state)
    assert "--" not in str(refusal.value), "a loader alone has no command line"


def noisy(loaders):
    """The samples of a pass, by their numbers, with what was drawn for each."""
    rows = [row for parts in zip(*loaders, strict=True) for part in parts for row in part.tolist()]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("make_data", [Noisy, NoisyStream])
def test_what_samples_draw_depends_on_no_number_of_ranks_or_workers_but_on_the_epoch(make_data):
    def make(**options):
        return lambda: DataLoader(make_data(13), 5, **options)

    [alone] = world_of(make(), 1)
    first, second = noisy([alone]), noisy([alone])
    assert noisy(world_of(make(), 3)) == noisy(world_of(make(num_workers=1), 2)) == first
    assert len({tuple(drawn) for drawn in [*first.values(), *second.values()]}) == 26
    assert noisy(world_of(make(), 2, seed=1)) != first


def test_the_random_numbers_of_the_script_are_left_alone():
    torch.manual_seed(3), numpy.random.seed(3), random.seed(3)
    before = torch.get_rng_state(), numpy.random.get_state()[1].tolist(), random.getstate()
    [loader] = world_of(lambda: DataLoader(Noisy(13), 5, shuffle=True), 1)
    for _ in loader:
        assert torch.equal(torch.get_rng_state(), before[0])
    assert (numpy.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_weights_make_of_the_ranks_means_the_mean_over_the_global_batch():
    values = torch.randn(23, dtype=torch.float64)
    for world_size in (1, 3, 4, 9):
        loaders = world_of(lambda: DataLoader(TensorDataset(values), 8), world_size)
        for number, parts in enumerate(zip(*loaders, strict=True)):
            mean = sum(part[0].mean() * loader.weight for part, loader in zip(parts, loaders, strict=True)) / world_size
            torch.testing.assert_close(mean, values[8 * number : 8 * number + 8].mean())


def test_a_batch_with_fewer_samples_than_ranks_is_told_of_once_where_no_weight_is_read(capfd):
    for reads in (True, False):
        loaders = world_of(lambda: DataLoader(Numbers(10), 4), 3)
        for _ in range(2):
            for _ in zip(*loaders, strict=True):
                assert not reads or [loader.weight for loader in loaders]
        assert capfd.readouterr().err.count("WARNING") == (not reads)


def test_it_is_as_long_as_its_loader_and_has_its_attributes():
    loader = lockstep.resumable(DataLoader(data := Numbers(10), 4), rank=2, world_size=3)
    assert (len(loader), loader.dataset, loader.batch_size, loader.num_workers) == (3, data, 4, 0)
    with pytest.raises(lockstep.UsageError):
        loader.batch_size = 5


def test_one_that_counts_to_the_length_needs_not_ask_for_the_end():
    expected = train(shuffled(), 1, 2)[0]
    [loader] = world_of(shuffled(), 1)
    found = []
    for epoch in range(2):
        batches = iter(loader)
        found += [(epoch, numbers(next(batches))) for _ in range(len(loader))]
    assert found == expected


def test_a_state_behind_the_last_batch_leaves_an_empty_pass_and_then_the_next_epoch():
    expected, _ = train(shuffled(), 1, 2)
    _, state = train(shuffled(), 2, 2, stop=8)
    [loader] = world_of(shuffled(), 1, state)
    assert (loader.epoch, [*loader], loader.epoch) == (0, [], 1)
    for tell in (
        lambda loader: loader.set_epoch(1),
        lambda loader: loader.sampler.set_epoch(1),
    ):  # a host that counts epochs
        [loader] = world_of(shuffled(), 1, state)
        tell(loader)
        assert [(1, numbers(batch)) for batch in loader] == expected[8:]


def test_epochs_can_be_told():
    expected, _ = train(shuffled(), 1, 5)
    [loader] = world_of(shuffled(), 1)
    for epoch in (3, 1, 4):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert [(epoch, numbers(batch)) for batch in loader] == [pair for pair in expected if pair[0] == epoch]


def test_a_pass_that_was_left_keeps_its_position_until_an_epoch_is_told():
    expected = [batch for _, batch in train(shuffled(), 1, 2)[0]]
    [loader] = world_of(shuffled(), 1)
    assert numbers(next(iter(loader))) == expected[0]  # only looked at
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (0, 1)
    with pytest.raises(lockstep.UsageError):
        next(iter(loader))
    loader.set_epoch(0)
    for found, batch in enumerate(loader):
        assert numbers(batch) == expected[found]
        if found == 3:
            break
    [resumed] = world_of(shuffled(), 1, loader.state_dict())
    assert list(map(numbers, resumed)) == expected[4:8]
    loader.set_epoch(1)
    assert list(map(numbers, loader)) == expected[8:]


@pytest.mark.parametrize("move", ["load", "tell", "begin"])
def test_an_older_iterator_is_refused(move):
    [loader] = world_of(shuffled(), 1)
    older = iter(loader)
    next(older)
    if move == "load":
        loader.load_state_dict(loader.state_dict())
    else:
        loader.set_epoch(2)
        if move == "begin":
            next(iter(loader))
    with pytest.raises(lockstep.UsageError):
        next(older)


@pytest.mark.parametrize("epoch", [0, 2])
def test_an_epoch_that_a_loaded_state_is_not_in_is_refused(epoch):
    _, state = train(shuffled(), 2, 3, stop=11)
    [loader] = world_of(shuffled(), 1, state)
    with pytest.raises(lockstep.UsageError):
        loader.set_epoch(epoch)
    loader.set_epoch(1)
    assert loader.state_dict() == state


@pytest.mark.parametrize(
    "make",
    [
        shuffled(31),
        shuffled(batch_size=5),
        lambda: DataLoader(Numbers(30), 4),
        lambda: DataLoader(Subset(Numbers(60), range(1, 31)), 4, shuffle=True),
    ],
    ids=["length", "batch size", "sampler", "subset"],
)
def test_the_state_of_another_loader_is_refused(make):
    _, state = train(shuffled(), 2, 2, stop=3)
    with pytest.raises(lockstep.MismatchError):
        world_of(make, 2, state)


def test_the_state_of_another_seed_or_kind_is_refused():
    _, state = train(shuffled(), 2, 2, stop=3)
    for other, options in ((state, {"seed": 1}), ({"_snapshot": 3}, {})):
        with pytest.raises(lockstep.MismatchError):
            world_of(shuffled(), 2, other, **options)


def test_a_loader_that_is_split_already_is_refused():
    data = Numbers(30)
    split = DataLoader(data, 4, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    for loader in (split, lockstep.resumable(DataLoader(data, 4)), (batch for batch in [torch.ones(4)])):
        with pytest.raises(lockstep.DataError):
            lockstep.resumable(loader)


def test_a_run_refuses_a_resumable_loader_which_it_would_split_again():
    with pytest.raises(lockstep.DataError):
        prepared(lockstep.resumable(DataLoader(Numbers(30), 4)))


@pytest.mark.parametrize("seed", [None, 1.0, "0"])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(lockstep.ConfigError):
        lockstep.resumable(DataLoader(Numbers(30), 4), seed=seed)


@pytest.mark.parametrize("rank", [-1, 2, None])
def test_a_rank_out_of_range_or_without_a_world_size_is_refused(rank):
    with pytest.raises(lockstep.ConfigError):
        lockstep.resumable(DataLoader(Numbers(30), 4), rank=rank, world_size=2)


def test_a_place_that_is_not_the_launchers_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert numbers(next(iter(lockstep.resumable(DataLoader(Numbers(30), 4))))) == [2, 3]
    with pytest.raises(lockstep.ConfigError):
        lockstep.resumable(DataLoader(Numbers(30), 4), rank=0, world_size=2)


def test_an_error_names_the_sample():
    class Broken(Numbers):
        def __getitem__(self, index):
            return 1 // (index - 7)

    with pytest.raises(lockstep.DataError) as error:
        [*lockstep.resumable(DataLoader(Broken(30), 4), rank=1, world_size=2)]
    assert "sample 7 of Broken" in str(error.value)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
