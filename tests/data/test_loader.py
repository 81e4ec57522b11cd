"""Promises of the prepared loader: the loop's clock, however the loop is written and left."""

import copy
import itertools

import pytest
import torch
from data_helpers import CPU, FakeDriver, Noisy, Numbers, draw, noisy_collate, prepared, same, share
from torch import nn
from torch.utils.data import DataLoader

import lockstep
from lockstep.data.loader import PreparedLoader
from lockstep.errors import DataError, UsageError
from lockstep.measure.events import read_events

pytestmark = pytest.mark.timeout(60)


def numbers(length=8, batch_size=4, **options):
    return DataLoader(Numbers(length), batch_size, collate_fn=list, **options)


# The clock


def test_one_iteration_is_one_micro_step_and_a_step_ends_when_the_next_batch_is_asked_for():
    driver = FakeDriver()
    for batch in prepared(numbers(), 0, 1, 2, driver):
        driver.told.append(batch)
    assert driver.told == [
        "enter",
        *(("begin", 1, 0), [0, 1], ("end", 1, 0), ("begin", 1, 1), [2, 3], ("end", 1, 1)),
        *(("begin", 2, 0), [4, 5], ("end", 2, 0), ("begin", 2, 1), [6, 7], ("end", 2, 1)),
        ("leave", "exhausted"),
    ]


@pytest.mark.parametrize(("rank", "shards", "steps"), [(0, 1, 3), (0, 4, 3), (1, 4, 3)])
def test_len_counts_global_steps(rank, shards, steps):
    assert len(prepared(numbers(10), rank, min(2, shards), shards)) == steps


def test_steps_go_on_from_epoch_to_epoch():
    driver = FakeDriver()
    loader = prepared(numbers(), 0, 1, 1, driver)
    for _ in range(3):
        list(loader)
    assert [told[1] for told in driver.told if told[0] == "begin"] == [1, 2, 3, 4, 5, 6]


def test_a_rank_without_samples_follows_and_runs_no_body():
    driver = FakeDriver()
    assert list(prepared(numbers(5), 2, 3, 3, driver)) == [[3]]
    assert driver.told == ["enter", ("begin", 1, 2), ("end", 1, 2), ("follow", 2, 1), ("leave", "exhausted")]


def test_a_rank_that_follows_leaves_the_loop_with_the_others():
    driver = FakeDriver(stop_following_at=2)
    batches = DataLoader(Numbers(12), batch_sampler=[[0, 1, 2], [3], [4, 5, 6]], collate_fn=list)
    assert list(prepared(batches, 2, 3, 3, driver)) == [[2]]
    assert driver.told[-1] == ("leave", "left")


# Random numbers


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 4])
def test_what_the_body_draws_depends_on_the_shard_alone(world_size, num_workers):
    def drawn_by(size, workers):
        found = {}
        for rank in range(size) if not workers else (size - 1,):
            driver = FakeDriver()
            batches = DataLoader(Noisy(12), 4, collate_fn=noisy_collate, num_workers=workers)
            for _ in prepared(batches, rank, size, 4, driver):
                found[driver.turn.step, driver.turn.shard] = draw()
        return found

    expected, found = drawn_by(1, 0), drawn_by(world_size, num_workers)
    assert found
    assert all(found[key] == expected[key] for key in found)
    assert len({tuple(drawn) for drawn in expected.values()}) == 12


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
            seen.append(next(batches))
        except StopIteration:
            batches = iter(loader)
            seen.append(next(batches))
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2 + [[0, 1, 2, 3]]
    assert driver.step == 5
    batches.close()
    assert driver.told[-1] == ("leave", "left")


def test_an_abandoned_iterator_ends_its_pass_when_the_next_begins_and_does_no_harm_later():
    driver = FakeDriver()
    loader = prepared(numbers(), 0, 1, 1, driver)
    old = iter(loader)
    next(old)
    new = iter(loader)
    assert next(new) == [0, 1, 2, 3]
    assert driver.told == ["enter", ("begin", 1, 0), ("leave", "left"), "enter", ("begin", 2, 0)]
    del old
    assert next(new) == [4, 5, 6, 7]
    assert driver.told[5:] == [("end", 2, 0), ("begin", 3, 0)]


def test_an_iterator_used_after_a_newer_one_is_refused():
    loader = prepared(numbers(12))
    old, new = iter(loader), iter(loader)
    next(old), next(new)
    with pytest.raises(UsageError, match="after a newer one"):
        next(old)
    assert next(new) == [4, 5, 6, 7]


def test_two_loaders_go_together_and_draw_from_their_own_streams():
    def run(workers=0):
        driver = FakeDriver()
        one, two = (
            prepared(DataLoader(Noisy(8), 4, shuffle=True, num_workers=workers), 0, 1, 2, driver, loader=number)
            for number in (1, 2)
        )
        return [(a, b, draw()) for a, b in zip(one, two, strict=False)]

    found = run()
    assert len(found) == 4
    assert not any(same(a, b) for a, b, _ in found)
    assert same(found, run(1))


def test_the_first_loader_of_two_moves_the_steps():
    driver = FakeDriver()
    one, two = (prepared(numbers(12), 0, 1, 1, driver, loader=number) for number in (1, 2))
    assert len(list(zip(one, two, strict=False))) == 3
    assert [told for told in driver.told if told[0] == "begin"] == [("begin", step, 0) for step in (1, 2, 3)]


@pytest.mark.parametrize("shards", [1, 2])
def test_nested_loops_are_refused(shards):
    driver = FakeDriver()
    one, two = (prepared(numbers(), 0, 1, shards, driver, loader=number) for number in (1, 2))
    with pytest.raises(DataError, match="cannot be nested"):
        [(a, b) for a in one for b in two]


def test_a_second_loader_without_a_batch_for_a_shard_is_refused():
    driver = FakeDriver()
    one = prepared(numbers(8, 4), 0, 1, 4, driver)
    two = prepared(numbers(8, 2), 0, 1, 4, driver, loader=2)
    with pytest.raises(DataError, match="with a batch for every shard"):
        list(zip(one, two, strict=False))


def test_a_loader_can_be_used_again_after_it_went_along():
    driver = FakeDriver()
    one, two = (prepared(numbers(), 0, 1, 1, driver, loader=number) for number in (1, 2))
    list(zip(one, two, strict=False))
    assert list(two) == [[0, 1, 2, 3], [4, 5, 6, 7]]
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
    assert driver.told == ["enter", ("begin", 1, 0), ("leave", "left")]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}])
def test_after_a_break_the_next_epoch_is_whole(options):
    loader = prepared(numbers(40, shuffle=True, **options), 0, 1, 2)
    for batch in loader:
        if batch:
            break
    assert sorted(sample for batch in loader for sample in batch) == list(range(40))


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


def test_a_loader_of_unknown_length_can_be_listed():
    class Endless:
        def __iter__(self):
            return iter([torch.arange(3)])

    loader = prepared(Endless())
    assert len(list(loader)) == 1
    with pytest.raises(TypeError):
        len(loader)


def test_batches_are_on_the_device():
    loader = PreparedLoader([{"x": torch.arange(4)}], share(), FakeDriver(), torch.device("meta"))
    assert next(iter(loader))["x"].device.type == "meta"
    assert next(iter(PreparedLoader([torch.arange(4)], share(), FakeDriver(), CPU))).device == CPU


# In real processes, with a real loop


def start(length=12, batch_size=4, **options):
    """A team, and a loader whose batches are indices."""
    team = lockstep.join()
    model, loader = team.prepare(nn.Linear(1, 1), DataLoader(Numbers(length), batch_size, **options))
    return team, model, loader


def step_of(team, model, batch):
    team.backward(model(batch[:, None].float()).mean())


def train_and_peek():
    team, model, loader = start(shuffle=True)
    peeked = next(iter(loader)).tolist()
    seen = []
    for batch in loader:
        step_of(team, model, batch)
        seen.append((team.step, batch.tolist(), float(torch.rand(()))))
    return peeked, seen


def train_with_a_shorter_second():
    team = lockstep.join()
    model, one, two = team.prepare(nn.Linear(1, 1), DataLoader(Numbers(20), 4), DataLoader(Numbers(8), 4))
    for batch, _ in zip(one, two, strict=False):
        step_of(team, model, batch)
    return team.step


def train_until_break(shuffle, when):
    team, model, loader = start(20, shuffle=shuffle)
    seen = []
    for _ in team.epochs(2):
        for batch in loader:
            step_of(team, model, batch)
            seen.append((team.step, batch.tolist()))
            if team.step == 2 and (team.ends_step or when == "middle"):
                break
    return team.step, seen


def train_by_next():
    team, model, loader = start(20)
    batches = iter(loader)
    for _ in range(3):
        step_of(team, model, next(batches))
        team.log(value=1.0)
    directory = team.run_dir
    team.close()
    return [event["event"] for event in read_events(directory)]


def together(by_rank):
    """What all ranks saw, by step."""
    seen = {}
    for one in by_rank:
        for step, batch, *_ in one:
            seen.setdefault(step, []).extend(batch)
    return seen


def test_a_break_at_the_end_of_a_step_leaves_every_world_size_alike(crew):
    results = [crew(nproc, train_until_break, True, "end", shards=4) for nproc in (1, 2)]
    assert {one[0] for by_rank in results for one in by_rank} == {7}  # 2 steps, then 5
    first, other = [together(one[1] for one in by_rank) for by_rank in results]
    assert [len(batch) for batch in first.values()] == [4] * 7
    assert other == first


def test_a_break_in_mid_step_discards_the_partial_step(crew):
    (step, seen) = crew(1, train_until_break, False, "middle", shards=2)[0]
    assert step == 1
    assert seen == [(1, [0, 1]), (1, [2, 3]), (2, [4, 5]), (2, [0, 1])]  # the second epoch begins with step 2 again


def test_a_look_at_the_first_batch_changes_no_world_size_more_than_another(crew):
    alone, two = crew(1, train_and_peek, shards=2), crew(2, train_and_peek, shards=2)
    assert [step for step, *_ in alone[0][1]] == sorted(step for one in two for step, *_ in one[1])


def test_a_zip_that_ends_with_its_second_loader_counts_the_same_steps_on_every_world_size(crew):
    assert crew(1, train_with_a_shorter_second, shards=2) == [2]
    assert crew(2, train_with_a_shorter_second, shards=2) == [2, 2]


def test_a_loop_by_next_is_reported_whole_although_its_iterator_lives_on(crew):
    events = crew(2, train_by_next)[0]
    assert events.count("step") == 3
    assert "epoch" in events
    assert events[-1] == "end"
