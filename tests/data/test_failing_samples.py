"""What an error in the user's data says: which sample, on which rank, in which step, and all that the user's own error said."""

import os
import random
import traceback
from pathlib import Path

import numpy
import psutil
import pytest
import torch
from data_helpers import Noisy, Numbers, assignment, same
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import lockstep
from lockstep.base.errors import DataError, LaunchError
from lockstep.data.assignment import ShardAssignment
from lockstep.data.evaluation_source import EvaluationKey, EvaluationSource
from lockstep.data.fetch import FetchPool, Request, choose_fetcher
from lockstep.data.sources import choose_source
from lockstep.data.streams import Purpose, reseed
from lockstep.plan.blocks import block
from lockstep.plan.shards import shard_slice

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
SEEDS = range(4)


class Broken(Numbers):
    """One sample cannot be read."""

    def __init__(self, length, bad, error=LookupError):
        super().__init__(length)
        self.bad, self.error = bad, error

    def __getitem__(self, index):
        if index == self.bad:
            raise self.error(f"no picture {index}")
        return torch.tensor([float(index)])


class BrokenItems(Broken):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class BrokenStream(IterableDataset):
    def __init__(self, length, bad, error=LookupError):
        self.length, self.bad, self.error = length, bad, error

    def __iter__(self):
        for index in range(self.length):
            if index == self.bad:
                raise self.error(f"no picture {index}")
            yield torch.tensor([float(index)])


class BrokenCollate:
    """Fails where it meets the sample with this number."""

    def __init__(self, bad, error=LookupError):
        self.bad, self.error = bad, error

    def __call__(self, samples):
        found = samples if isinstance(samples, torch.Tensor) else torch.stack(samples)
        if (found == self.bad).any():
            raise self.error(f"no room for {self.bad}")
        return found


class Order(list):
    """A sampler of these indices."""


def told(loader, place=None, evaluate=False):
    """The error that a pass ends with; None if there is none."""
    place = place or assignment()
    try:
        if evaluate:
            for _, _, fetch in EvaluationSource(loader, place).deal(EvaluationKey(step=0, number=0)):
                if fetch is not None:
                    fetch()
        else:
            list(choose_source(loader, place).deal(1, 0))
    except DataError as error:
        return error
    return None


def told_in_full(*args, **options):
    """Its text, and what Python shows of it. For ``crew``."""
    error = told(*args, **options)
    return str(error), "".join(traceback.format_exception(error))


def a_case(seed):
    """A data set's length, the size of its batches, and an index of a sample."""
    chance = random.Random(seed)
    length = chance.randrange(5, 40)
    return length, chance.randrange(1, length), chance.randrange(length)


def place_of(bad, length, batch_size, num_shards):
    """The step and shard of a sample that is dealt out in order."""
    batch, within = divmod(bad, batch_size)
    size = min(batch_size, length - batch * batch_size)
    for shard in range(num_shards):
        cut = shard_slice(shard, size, num_shards)
        if cut.start <= within < cut.stop:
            return batch + 1, shard
    raise AssertionError


# Samples that are read by index


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [Broken, BrokenItems])
def test_the_owner_of_the_sample_is_told_and_no_other_rank(seed, kind):
    length, batch_size, bad = a_case(seed)
    step, shard = place_of(bad, length, batch_size, 4)
    for rank in range(3):
        error = told(DataLoader(kind(length, bad), batch_size), assignment(rank, 3, 4))
        if shard not in block(rank, 3, 4):
            assert error is None
            continue
        assert (
            f" of {kind.__name__} failed on rank {rank}, in step {step}, shard {shard}, with LookupError: no picture {bad}. "
            in str(error)
        )
        assert type(error.__cause__) is LookupError
        if kind is Broken:
            assert str(error).startswith(f"sample {bad} of ")
            assert f"`dataset[{bad}]` in a shell" in str(error)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("evaluate", [False, True])
def test_the_message_is_the_same_with_workers_and_the_users_traceback_is_shown(standing_crew, seed, evaluate):
    length, batch_size, bad = a_case(seed)
    order = random.Random(seed).sample(range(length), length)
    found = []
    for num_workers in (0, 2):
        loader = DataLoader(Broken(length, bad), batch_size, sampler=Order(order), num_workers=num_workers)
        asked = assignment(1, 2, 2) if evaluate else assignment()
        message, shown = standing_crew(1, told_in_full, loader, asked, evaluate)[0]
        if message != "None":
            assert 'raise self.error(f"no picture {index}")' in shown
            assert "in __getitem__" in shown
            assert shown.rstrip().endswith(message)
        found.append(message)
    assert found[0] == found[1]
    batch = order.index(bad) // batch_size
    where = f"in batch {batch} of an evaluation" if evaluate else f"in step {batch + 1}, shard 0"
    if evaluate and batch % 2 == 0:
        assert found[0] == "None"  # it is rank 0's
    else:
        assert found[0].startswith(f"sample {bad} of Broken failed on rank {int(evaluate)}, {where}, with LookupError: ")


def test_an_index_is_named_as_the_sampler_gave_it():
    for index, name in ((torch.tensor(3), "3"), (numpy.int64(3), "3"), (-9, "-9"), ("three", "'three'"), (None, "None")):
        loader = DataLoader(Broken(4, 3, KeyError), sampler=Order([0, index]))
        loader.dataset.bad = index
        assert str(told(loader)).startswith(f"sample {name} of Broken failed on rank 0, in step 2, shard 0, with KeyError: ")


def test_a_subset_is_named_with_its_data_set_and_its_own_index():
    loader = DataLoader(Subset(Broken(10, 7), [1, 5, 7, 9]), 2)
    assert str(told(loader)).startswith("sample 2 of Subset of Broken failed on rank 0, in step 2, shard 0, with ")


def test_a_subset_gives_what_it_gives_by_itself_also_when_its_indices_change():
    subset = Subset(Noisy(10), [1, 5, 7, 9])
    loader = DataLoader(subset, 2)
    fetcher = choose_fetcher(5, loader)
    for indices in ([1, 5, 7, 9], [4, 3, 2, 1]):
        subset.indices = indices
        reseed(5, Purpose.FETCH, 1, 2, 3)
        by_itself = loader.collate_fn(subset.__getitems__([3, 0]))
        assert same(fetcher[Request(Purpose.FETCH, (1, 2, 3), [3, 0])], by_itself)


@pytest.mark.parametrize("dataset", [TensorDataset(torch.arange(6.0)), Subset(TensorDataset(torch.arange(9.0)), range(6))])
@pytest.mark.parametrize("bad", [6, 99, -7, 2**70, "six"])
def test_an_index_outside_of_a_table_is_named(dataset, bad):
    message = str(told(DataLoader(dataset, 4, sampler=Order([5, -6, 0, 1, 2, bad]))))
    name = "TensorDataset" if type(dataset) is TensorDataset else "Subset of TensorDataset"
    assert message.startswith(f"sample {bad!r} of {name} failed on rank 0, in step 2, shard 0, with ")
    if bad in (6, 99, -7):
        assert "with IndexError: " in message


def test_an_index_outside_of_a_table_is_named_by_a_worker_too(standing_crew):
    loader = DataLoader(TensorDataset(torch.arange(6.0)), 4, sampler=Order([0, 1, 2, 6]), num_workers=1)
    message, shown = standing_crew(1, told_in_full, loader)[0]
    assert message == str(told(DataLoader(loader.dataset, 4, sampler=loader.sampler)))
    assert "During handling" not in shown  # nothing of the quick way, which was tried first


# Samples that are read many at once


@pytest.mark.parametrize(
    ("indices", "listed"),
    [
        ([3], "sample 3 of"),
        ([3, 1], "one of samples 3, 1 of"),
        ([3, *range(15)], f"one of samples 3, {', '.join(map(str, range(15)))} of"),
        ([3, *range(16)], f"one of samples 3, {', '.join(map(str, range(15)))}, ... (17 in all) of"),
    ],
)
def test_all_that_were_asked_for_at_once_are_named(indices, listed):
    loader = DataLoader(BrokenItems(20, 3), batch_sampler=[indices])
    assert str(told(loader)).startswith(f"{listed} BrokenItems failed on rank 0, in step 1, shard 0, with LookupError: ")


def test_a_batch_sampler_may_give_anything_that_can_be_counted():
    for batch in ((2, 3), {3}, torch.tensor([2, 3]), numpy.array([2, 3])):
        assert "3 of BrokenItems failed" in str(told(DataLoader(BrokenItems(4, 3), batch_sampler=[batch]), evaluate=True))


@pytest.mark.parametrize("kind", [Broken, BrokenStream])
def test_no_loader_worker_is_left_when_an_error_is_kept(kind):
    before = set(psutil.Process().children())
    error = told(DataLoader(kind(8, 5), 2, num_workers=2))
    assert "no picture 5" in str(error)
    assert set(psutil.Process().children()) == before


# Streams


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sample_of_a_stream_is_named_by_its_place_on_every_rank(standing_crew, seed, num_workers):
    length, batch_size, bad = a_case(seed)
    loader = DataLoader(BrokenStream(length, bad), batch_size, num_workers=num_workers)
    for rank, evaluate in ((0, False), (1, False), (1, True)):
        message, shown = standing_crew(1, told_in_full, loader, assignment(rank, 2, 2), evaluate)[0]
        batch = bad // batch_size
        where = f"in batch {batch} of an evaluation" if evaluate else f"in step {batch + 1}"
        assert message == (
            f"sample {bad} of BrokenStream failed on rank {rank}, {where}, with LookupError: no picture {bad}. Look at that "
            f"sample: `next(itertools.islice(dataset, {bad}, None))` in a shell should give the same error"
        )
        assert 'raise self.error(f"no picture {index}")' in shown


def test_a_sample_of_a_stream_is_counted_through_all_batches_of_a_step():
    place = ShardAssignment(rank=0, world_size=1, num_shards=2, seed=0, loader=1, accumulate=3)
    assert str(told(DataLoader(BrokenStream(40, 31), 4), place)).startswith(
        "sample 31 of BrokenStream failed on rank 0, in step 3, with "
    )


# Collating


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [Broken, BrokenItems, BrokenStream])
def test_what_fails_while_collating_is_named_with_all_samples_of_the_shard(standing_crew, num_workers, kind):
    loader = DataLoader(kind(12, None), 6, collate_fn=BrokenCollate(10), num_workers=num_workers)
    message, shown = standing_crew(1, told_in_full, loader, assignment(1, 2, 2))[0]
    assert message == (
        f"collating samples 9, 10, 11 of {kind.__name__} failed on rank 1, in step 2, shard 1, with LookupError: no room for "
        "10. Look at those samples: `collate_fn([...])` in a shell should give the same error"
    )
    assert "in __call__" in shown
    message, _ = standing_crew(1, told_in_full, loader, assignment(1, 2, 2), True)[0]
    assert message.startswith(
        f"collating samples 6, 7, 8, 9, 10, 11 of {kind.__name__} failed on rank 1, in batch 1 of an evaluation, with "
    )


class Ragged(Numbers):
    def __getitem__(self, index):
        return torch.zeros(index)


def test_samples_that_do_not_fit_together_are_named():
    message = str(told(DataLoader(Ragged(4), 2)))
    assert message.startswith(
        "collating samples 0, 1 of Ragged failed on rank 0, in step 1, shard 0, with RuntimeError: stack"
    )


# Ready batches


def broken_batches(bad):
    class Batches:
        def __iter__(self):
            for number in range(6):
                if number == bad:
                    raise LookupError(f"no picture {number}")
                yield torch.full((2, 1), float(number))

    return Batches()


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_ready_batch_is_named_by_its_number(evaluate):
    where = ", in an evaluation" if evaluate else ""
    loaders = {
        "batch 4 of Broken": DataLoader(Broken(6, 4), batch_size=None, sampler=Order([0, 4, 2])),
        "batch 3 of BrokenStream": DataLoader(BrokenStream(6, 3), batch_size=None),
        "collating batch 2 of Broken": DataLoader(Broken(6, None), batch_size=None, collate_fn=BrokenCollate(2)),
        "collating batch 1 of BrokenStream": DataLoader(BrokenStream(6, None), batch_size=None, collate_fn=BrokenCollate(1)),
        "batch 5 of Batches": broken_batches(5),
    }
    for named, loader in loaders.items():
        error = told(loader, evaluate=evaluate)
        assert str(error).startswith(f"{named} failed on rank 0{where}, with LookupError: no ")
        assert type(error.__cause__) is LookupError


# What else an error can be


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_error_passes_unchanged(kind):
    loaders = [
        DataLoader(Broken(6, 3, kind), 2),
        DataLoader(BrokenItems(6, 3, kind), 2),
        DataLoader(BrokenStream(6, 3, kind), 2),
        DataLoader(Broken(6, None), 2, collate_fn=BrokenCollate(3, kind)),
        DataLoader(BrokenStream(6, None), 2, collate_fn=BrokenCollate(3, kind)),
        DataLoader(Broken(6, 3, kind), batch_size=None),
    ]
    for loader in loaders:
        for evaluate in (False, True):
            with pytest.raises(kind) as caught:
                told(loader, evaluate=evaluate)
            assert caught.value.__cause__ is None


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_end_of_an_iterator_is_an_error_where_a_sample_was_asked_for(standing_crew, num_workers):
    loader = DataLoader(Broken(6, 3, StopIteration), 2, num_workers=num_workers)
    assert standing_crew(1, told_in_full, loader)[0][0].startswith(
        "sample 3 of Broken failed on rank 0, in step 2, shard 0, with Stop"
    )


class AwkwardError(Exception):
    """Needs two arguments, and cannot be printed."""

    def __init__(self, where, what):
        super().__init__(where, what)

    def __str__(self):
        raise ValueError


def awkward(message):
    return AwkwardError("there", message)


def of_many_lines(message):
    return RuntimeError(f"{message}\nlockstep.errors: DataError: is not here\n")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_of_any_kind_come_through(standing_crew, num_workers):
    def message(error):
        return standing_crew(1, told_in_full, DataLoader(Broken(6, 3, error), 2, num_workers=num_workers))[0][0]

    beginning = "sample 3 of Broken failed on rank 0, in step 2, shard 0, with"
    assert message(awkward).startswith(f"{beginning} AwkwardError. Look at ")
    assert message(AssertionError).startswith(f"{beginning} AssertionError: no picture 3. Look at ")
    lines = message(of_many_lines)
    assert lines.startswith(f"{beginning} RuntimeError: no picture 3\nlockstep.errors: DataError: is not here. Look at ")
    assert "Caught" not in lines


def two_passes(num_workers):
    """What can be read of a data set before and after its error was caught, with workers that live on."""
    loader = DataLoader(Broken(8, 5), 2, num_workers=num_workers, persistent_workers=num_workers > 0)
    pool = FetchPool(choose_fetcher(0, loader), loader)
    found = []
    for indices in ([0, 5, 2], [4, 6]):
        try:
            found.extend(pool.run(Request(Purpose.FETCH, (1, 1, 0), [index]) for index in indices))
        except DataError:
            found.append("an error")
    return [one if isinstance(one, str) else float(one) for one in found]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_after_an_error_that_is_caught_the_next_pass_is_as_ever(standing_crew, num_workers):
    assert standing_crew(1, two_passes, num_workers) == [[0.0, "an error", 4.0, 6.0]]


# Whole runs


class Timed(Broken):
    """Writes down where it failed."""

    def __getitem__(self, index):
        if index == self.bad:
            Path("failed").write_text(os.environ["RANK"])
        return super().__getitem__(index)


class TimedStream(BrokenStream):
    def __iter__(self):
        for index, sample in enumerate(super().__iter__()):
            if index + 1 == self.bad:
                Path("failed").write_text("any")
            yield sample


def run(loader, evaluate):
    """A user's script."""
    team = lockstep.join()
    model = team.prepare(nn.Linear(1, 1))
    if evaluate:
        with team.evaluate(model, loader) as evaluation:
            for batch in evaluation:
                for inputs in batch.shards:
                    batch.add(loss=model(inputs).mean())
        return
    optimizer, loader = team.prepare(torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for batch in loader:
        for inputs in batch.shards:
            team.backward(model(inputs).mean())
        optimizer.step()


@pytest.mark.parametrize(("nproc", "num_workers"), [(2, 2), pytest.param(1, 0, marks=pytest.mark.long)])
@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("kind", [Timed, TimedStream])
def test_a_run_ends_before_its_timeout_and_names_rank_and_sample(crew, nproc, num_workers, evaluate, kind, tmp_path):
    chance = random.Random(f"{nproc} {num_workers} {evaluate} {kind.__name__}")
    bad = chance.randrange(1, 32)
    loader = DataLoader(kind(32, bad), 4, num_workers=num_workers)
    with pytest.raises(LaunchError) as caught:
        crew(nproc, run, loader, evaluate, shards=2, timeout_s=3600.0)
    rank = (tmp_path / "failed").read_text()
    report = str(caught.value)
    first = report.splitlines()[0]
    rank = rank if kind is Timed else first.split()[1]  # every rank reads a stream
    batch = bad // 4
    where = f"in batch {batch} of an evaluation" if evaluate else f"in step {batch + 1}"
    assert first.startswith(f"rank {rank} of {nproc} on ")
    assert f" failed: DataError: sample {bad} of {kind.__name__} failed on rank {rank}, {where}" in first
    assert f"with LookupError: no picture {bad}. " in first
    assert 'raise self.error(f"no picture {index}")' in report
    assert caught.value.exit_status == 1


SCRIPT = """
    import sys, torch, lockstep
    from torch.utils.data import DataLoader, Dataset

    class Pictures(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index == {bad}:
                raise FileNotFoundError(2, "no such file", f"picture-{{index}}.png")
            return torch.ones(1)

    team = lockstep.join()
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(Pictures(), 8, shuffle=True, num_workers=int(sys.argv[1]))
    model, optimizer, loader = team.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for batch in loader:
        for inputs in batch.shards:
            team.backward(model(inputs).mean())
        optimizer.step()
    print("not reached")
"""


@pytest.mark.parametrize(("nproc", "num_workers"), [(1, 0), (2, 2)])
def test_the_command_reports_the_sample(run_here, nproc, num_workers):
    bad = random.Random(nproc).randrange(40)
    options = ("--nproc-per-node", str(nproc), "--threads", "1")
    done = run_here(SCRIPT.format(bad=bad), *options, args=(str(num_workers),))
    assert done.returncode == 1
    assert f"DataError: sample {bad} of Pictures failed on rank " in done.stderr
    assert f"with FileNotFoundError: [Errno 2] no such file: 'picture-{bad}.png'. " in done.stderr
    assert 'raise FileNotFoundError(2, "no such file"' in done.stderr
    assert "not reached" not in done.stdout
