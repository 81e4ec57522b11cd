"""Promises of the prepared loader: the loop's clock, however the loop is written and left."""

import copy
import itertools

import pytest
import torch
from codes import raises
from data_helpers import CPU, FakeDriver, Numbers, Stream, assignment, prepared, same
from torch import nn
from torch.utils.data import DataLoader

import lockstep
from lockstep._base.errors import DataError, UsageError
from lockstep._data.loader import PreparedLoader
from lockstep._events.history import read_events

pytestmark = pytest.mark.timeout(60)


def numbers(length=8, batch_size=4, **options):
    return DataLoader(Numbers(length), batch_size, collate_fn=list, **options)


def samples_of(batches):
    """Of each batch, those of each shard."""
    return [list(batch.shards) for batch in batches]


def steps_of(driver):
    return [told[1] for told in driver.told if told[0] == "step"]


# The clock


def test_one_iteration_is_one_step_and_it_ends_when_the_next_batch_is_asked_for():
    driver = FakeDriver()
    for batch in prepared(numbers(6), 0, 1, 2, driver):
        for samples in batch.shards:
            driver.told.append(samples)
    assert driver.told == [
        "enter",
        *(("step", 1, 4), ("phase", 0), ("shard", 0), [0, 1], ("shard", 1), [2, 3], ("phase over", 0), ("step over", 1)),
        *(("step", 2, 2), ("phase", 0), ("shard", 0), [4], ("shard", 1), [5], ("phase over", 0), ("step over", 2)),
        ("leave", "exhausted"),
    ]


def test_the_shards_of_a_batch_can_be_run_again_each_time_as_a_phase():
    driver = FakeDriver()
    for batch in prepared(numbers(4), 0, 1, 2, driver):
        assert [list(batch.shards) for _ in range(3)] == [[[0, 1], [2, 3]]] * 3
    assert [told for told in driver.told if told[0] == "phase"] == [("phase", number) for number in range(3)]
    assert steps_of(driver) == [1]


@pytest.mark.parametrize(("rank", "shards", "steps"), [(0, 1, 3), (0, 4, 3), (1, 4, 3)])
def test_len_counts_global_steps(rank, shards, steps):
    assert len(prepared(numbers(10), rank, min(2, shards), shards)) == steps


def test_steps_go_on_from_epoch_to_epoch():
    driver = FakeDriver()
    loader = prepared(numbers(), 0, 1, 1, driver)
    for _ in range(3):
        list(loader)
    assert steps_of(driver) == [1, 2, 3, 4, 5, 6]


def test_a_rank_without_samples_has_the_step_and_its_phases_too():
    driver = FakeDriver()
    assert samples_of(prepared(numbers(5), 2, 3, 3, driver)) == [[[3]], []]
    assert driver.told == [
        "enter",
        *(("step", 1, 4), ("phase", 0), ("shard", 2), ("phase over", 0), ("step over", 1)),
        *(("step", 2, 1), ("phase", 0), ("phase over", 0), ("step over", 2)),
        ("leave", "exhausted"),
    ]


# Random numbers


# Ways to write the loop


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_iterating_without_gradients_is_refused_with_the_remedy(off):
    loader = prepared(numbers())
    with off(), pytest.raises(UsageError, match=r"team\.evaluate"):
        next(iter(loader))
    assert len(list(loader)) == 2


def test_iter_and_next_over_several_epochs():
    driver = FakeDriver()
    loader = prepared(numbers(), 0, 1, 1, driver)
    batches, seen = iter(loader), []
    for _ in range(5):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        seen += batch.shards
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2 + [[0, 1, 2, 3]]
    assert driver.step == 5
    batches.close()
    assert driver.told[-1] == ("leave", "left")


def test_an_abandoned_iterator_ends_its_pass_when_the_next_begins():
    driver = FakeDriver()
    loader = prepared(numbers(), 0, 1, 1, driver)
    old = iter(loader)
    next(old)
    new = iter(loader)
    first = next(new)
    assert driver.told == ["enter", ("step", 1, 4), ("leave", "left"), "enter", ("step", 2, 4)]
    del old
    assert samples_of([first, next(new)]) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert driver.told[5:7] == [("step over", 2), ("step", 3, 4)]


def test_an_iterator_used_after_a_newer_one_is_refused():
    loader = prepared(numbers(12))
    old, new = iter(loader), iter(loader)
    next(old), next(new)
    with raises(UsageError, "iterator-outdated"):
        next(old)
    assert list(next(new).shards) == [[4, 5, 6, 7]]


def test_an_iterator_beside_another_loaders_loop_is_refused_too_after_a_newer_one():
    driver = FakeDriver()
    one, two = (prepared(numbers(12), 0, 1, 1, driver, loader=number) for number in (1, 2))
    for _ in one:
        old, new = iter(two), iter(two)
        next(old), next(new)
        with raises(UsageError, "iterator-outdated"):
            next(old)
        assert list(next(new).shards) == [[4, 5, 6, 7]]
        break


def test_the_first_loader_of_two_moves_the_steps():
    driver = FakeDriver()
    one, two = (prepared(numbers(12), 0, 1, 1, driver, loader=number) for number in (1, 2))
    assert len(list(zip(one, two, strict=False))) == 3
    assert steps_of(driver) == [1, 2, 3]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_loop_within_a_loop_runs_phases_of_the_outer_loops_steps(shards):
    driver = FakeDriver()
    one, two = (prepared(numbers(), 0, 1, shards, driver, loader=number) for number in (1, 2))
    inner = [[sample for samples in batch.shards for sample in samples] for _ in one for batch in two]
    assert inner == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    of_step = [("phase", 0), ("phase over", 0), ("phase", 1), ("phase over", 1)]
    told = [told for told in driver.told if told[0] in ("step", "phase", "phase over", "step over")]
    assert told == [
        *(("step", 1, 4), *of_step, ("step over", 1)),
        *(("step", 2, 4), *of_step, ("step over", 2)),
    ]


def test_a_loader_can_be_used_again_after_it_went_along():
    driver = FakeDriver()
    one, two = (prepared(numbers(), 0, 1, 1, driver, loader=number) for number in (1, 2))
    list(zip(one, two, strict=False))
    assert samples_of(two) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert driver.step == 4


# Ways to leave it


def leave_by_break(loader):
    for _ in loader:
        break


def leave_by_return(loader):
    for _ in loader:
        return


def leave_by_break_in_a_handler(loader):
    try:
        raise ValueError
    except ValueError:  # a retry after an error, say
        for _ in loader:
            break


def leave_by_islice(loader):
    list(itertools.islice(loader, 1))


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_return, leave_by_break_in_a_handler, leave_by_islice])
def test_a_loop_that_is_left_is_told_so_at_once(leave):
    driver = FakeDriver()
    leave(prepared(numbers(), 0, 1, 1, driver))
    assert driver.told == ["enter", ("step", 1, 4), ("leave", "left")]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}])
def test_after_a_break_the_next_epoch_is_whole(options):
    loader = prepared(numbers(40, shuffle=True, **options), 0, 1, 2)
    for _ in loader:
        break
    assert sorted(sample for batch in loader for samples in batch.shards for sample in samples) == list(range(40))


class Failing(Numbers):
    def __getitem__(self, index):
        if index == 5:
            raise LookupError("sample five is broken")
        return index


def test_an_exception_in_the_data_set_surfaces_and_the_pass_has_failed():
    driver = FakeDriver()
    with pytest.raises(DataError, match="sample five is broken"):
        list(prepared(DataLoader(Failing(8), 4), 0, 1, 1, driver))
    assert driver.told[-1] == ("leave", "failed")


# What it is besides


def test_other_attributes_are_those_of_the_users_loader():
    plain = numbers(num_workers=0)
    loader = prepared(plain)
    assert (loader.batch_size, loader.dataset, loader.wrapped) == (4, plain.dataset, plain)
    assert not hasattr(loader, "nonsense")
    assert copy.copy(loader).wrapped is plain


def test_what_a_loader_would_not_heed_any_more_is_refused():
    loader = prepared(numbers(), 0, 1, 1)
    with raises(UsageError, "loader-attribute-set"):
        loader.collate_fn = tuple


@pytest.mark.parametrize("num_taken", range(4))
def test_a_loader_that_goes_along_is_finished_after_any_number_of_its_batches(num_taken):
    driver = FakeDriver()
    leader, other = (prepared(DataLoader(Numbers(12), 4), driver=driver, loader=number) for number in (1, 2))
    steps, others = iter(leader), iter(other)
    next(steps)
    assert sum(1 for _ in itertools.islice(others, num_taken)) == num_taken
    other.finish()
    assert next(others, None) is None or num_taken == 0
    other.finish()
    assert len(list(other)) == 3
    leader.finish()
    assert driver.told[-1] == ("leave", "left")


def test_a_loader_of_unknown_length_can_be_listed():
    class Endless:
        def __iter__(self):
            return iter([torch.arange(3)])

    loader = prepared(Endless())
    assert len(list(loader)) == 1
    with pytest.raises(TypeError):
        len(loader)


def test_batches_are_on_the_device():
    loader = PreparedLoader([{"x": torch.arange(4)}], assignment(), FakeDriver(), torch.device("meta"))
    ((samples,),) = samples_of(loader)
    assert samples["x"].device.type == "meta"
    ((samples,),) = samples_of(PreparedLoader([torch.arange(4)], assignment(), FakeDriver(), CPU))
    assert samples.device == CPU


def unpack(batch):
    _images, _labels = batch


@pytest.mark.parametrize(
    "use",
    [
        unpack,
        lambda batch: batch[0],
        lambda batch: batch.to(CPU),
        lambda batch: batch["pixels"],
        lambda batch: list(batch),
    ],
)
def test_a_batch_that_is_taken_for_its_samples_is_refused_with_the_line_to_write(use):
    batch = next(iter(prepared(numbers(), 0, 1, 2)))
    with pytest.raises(UsageError, match=r"in batch\.shards"):
        use(batch)
    assert not hasattr(batch, "__array__")


# In real processes, with a real loop (as many of tests/idioms/topics are)


def start(length=12, batch_size=4, **options):
    """A team, and a loader whose batches are indices."""
    team = lockstep.join()
    model, loader = team.prepare(nn.Linear(1, 1), DataLoader(Numbers(length), batch_size, **options))
    return team, model, loader


def step_of(team, model, batch):
    """The samples of this process."""
    seen = []
    for samples in batch.shards:
        team.backward(model(samples[:, None].float()).mean())
        seen += samples.tolist()
    return seen


def train_side_by_side(strict):
    team = lockstep.join()
    model, one, two = team.prepare(nn.Linear(1, 1), DataLoader(Numbers(9), 4), DataLoader(Numbers(9), 4, shuffle=True))
    seen = []
    for a, b in zip(one, two, strict=strict):
        for x, y in zip(a.shards, b.shards, strict=strict):
            team.backward(model((x - y)[:, None].float()).mean())
            a.add(x=x.double())
            b.add(y=y.double())
        seen.append((a["x"], a["y"], b["x"], b["y"], a.num_samples, team.step))
    return seen


def train_one_after_another():
    team = lockstep.join()
    model, one, two = team.prepare(nn.Linear(1, 1), DataLoader(Numbers(9), 4), DataLoader(Numbers(9), 4))
    seen = []
    for a, b in zip(one, two, strict=True):
        for x in itertools.chain(a.shards, b.shards):
            team.backward(model(x[:, None].float()).mean())
        of_a, of_b = a.shards, b.shards
        for x in of_a:
            a.add(x=x.double())
        for x in of_b:
            b.add(x=x.double() + 1)
        seen.append((a["x"], b["x"], model.weight.grad.item()))
    return seen


def train_in_a_loop():
    team = lockstep.join()
    model, one, two = team.prepare(nn.Linear(1, 1), DataLoader(Numbers(8), 4), DataLoader(Numbers(6), 3))
    for outer in one:
        for x in outer.shards:
            team.backward(model(x[:, None].float()).mean())
            outer.add(seen=x.double())
        for inner in two:
            for y in inner.shards:
                team.backward(model(y[:, None].float()).mean())
                inner.add(seen=100 + y.double())
        assert (outer["seen"], inner["seen"]) == (4 * team.step - 2.5, 104.0)
    return one.averages, two.averages


def train_by_next():
    team, model, loader = start(20)
    batches = iter(loader)
    for _ in range(3):
        step_of(team, model, next(batches))
        team.log(value=1.0)
    directory = team.run_dir
    team.close()
    return [event["event"] for event in read_events(directory)]


@pytest.mark.parametrize("nproc", [1, 2])
def test_in_a_loop_within_a_loop_each_loader_has_the_averages_of_its_own_batches(standing_crew, nproc):
    assert standing_crew(nproc, train_in_a_loop, shards=2) == [({"seen": 3.5}, {"seen": 102.5})] * nproc


@pytest.mark.parametrize("strict", [False, True])
def test_shards_side_by_side_are_one_phase_with_one_mean(standing_crew, strict):
    found = [
        seen for nproc in (1, 2, 3) for seen in standing_crew(nproc, train_side_by_side, strict, shards=3, timeout_s=20.0)
    ]
    assert all(seen == found[0] for seen in found)
    assert [(samples, step) for *_, samples, step in found[0]] == [(4, 1), (4, 2), (1, 3)]
    assert [(x, y) for x, y, *_ in found[0]] == [(x, y) for _, _, x, y, *_ in found[0]]
    assert [x for x, *_ in found[0]] == [1.5, 5.5, 8.0]


def test_shards_of_two_loaders_one_after_another_are_two_phases_also_on_ranks_without_samples(standing_crew):
    found = [seen for nproc in (1, 2, 3) for seen in standing_crew(nproc, train_one_after_another, shards=3, timeout_s=20.0)]
    assert all(seen == found[0] for seen in found)
    assert [(x, y) for x, y, _ in found[0]] == [(1.5, 2.5), (5.5, 6.5), (8.0, 9.0)]


def test_a_loop_by_next_is_reported_whole_although_its_iterator_lives_on(standing_crew):
    events = standing_crew(2, train_by_next)[0]
    assert events.count("step") == 3
    assert "epoch" in events
    assert events[-1] == "end"


@pytest.mark.parametrize("make", [numbers, lambda: DataLoader(Stream(8), 4), lambda: [torch.zeros(4), torch.ones(4)]])
def test_a_position_that_was_loaded_stays_until_the_pass_begins(make):
    loader = prepared(make())
    next(iter(loader))
    begun = iter(loader)
    next(begun)
    state = copy.deepcopy(loader.state())
    next(begun)
    state_after_a_step = copy.deepcopy(loader.state())
    for position in (state, state_after_a_step):
        again = prepared(make())
        again.load_state(copy.deepcopy(position))
        assert same(again.state(), position)
