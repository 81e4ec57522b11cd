"""What an error in the user's data says: which sample, on which rank, in which step, and all that
the user's own error said."""

import errno
import random
import re
import traceback

import numpy
import psutil
import pytest
import torch
from codes import raises
from data_helpers import Numbers, assignment
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from lockstep._base.errors import DataError
from lockstep._data.evaluation_source import EvaluationKey, EvaluationSource
from lockstep._data.sources import choose_source

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
SEEDS = range(2)


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


PLACE = ("rank 0", "step 2, shard 0")
IN_WORKER = "num_workers=0"


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
            list(choose_source(loader, place).steps(1, 0))
    except DataError as error:
        return error
    return None


def told_in_full(*args, **options):
    """Its text, and what Python shows of it. For ``crew``."""
    error = told(*args, **options)
    return str(error), "".join(traceback.format_exception(error))


def blames(message, *parts):
    """Whether a message begins with the first of these parts, and has the others in this order."""
    return re.match(".*".join(map(re.escape, parts)), message, re.DOTALL) is not None


def a_case(seed):
    """A data set's length, the size of its batches, and an index of a sample."""
    chance = random.Random(seed)
    length = chance.randrange(5, 40)
    return length, chance.randrange(1, length), chance.randrange(length)


# Samples that are read by index


def test_an_index_is_named_as_the_sampler_gave_it():
    for index, name in ((torch.tensor(3), "3"), (numpy.int64(3), "3"), (-9, "-9"), ("three", "'three'"), (None, "None")):
        loader = DataLoader(Broken(4, 3, KeyError), sampler=Order([0, index]))
        loader.dataset.bad = index
        assert blames(str(told(loader)), f"sample {name} of Broken ", *PLACE, "KeyError: ")


def test_a_subset_is_named_with_its_data_set_and_its_own_index():
    loader = DataLoader(Subset(Broken(10, 7), [1, 5, 7, 9]), 2)
    assert blames(str(told(loader)), "sample 2 of Subset of Broken ", *PLACE)


@pytest.mark.parametrize("dataset", [TensorDataset(torch.arange(6.0)), Subset(TensorDataset(torch.arange(9.0)), range(6))])
@pytest.mark.parametrize("bad", [6, -7, "six"])
def test_an_index_outside_of_a_table_is_named(dataset, bad):
    message = str(told(DataLoader(dataset, 4, sampler=Order([5, -6, 0, 1, 2, bad]))))
    name = "TensorDataset" if type(dataset) is TensorDataset else "Subset of TensorDataset"
    assert blames(message, f"sample {bad!r} of {name} ", *PLACE, *(["IndexError: "] if bad in (6, 99, -7) else []))


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_a_sample_is_not_blamed_where_the_process_has_run_out_of_something(error):
    def fail(message):
        raise error

    loader = DataLoader(Broken(4, 3, fail), 2)
    message = str(told(loader))
    assert blames(message, "sample 3 of Broken ", *PLACE)
    assert "dataset[3]" not in message  # alone it does not fail


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
    assert blames(str(told(loader)), f"{listed} BrokenItems ", "rank 0", "step 1, shard 0", "LookupError: ")


@pytest.mark.parametrize("kind", [Broken, BrokenStream])
def test_no_loader_worker_is_left_when_an_error_is_kept(kind):
    before = set(psutil.Process().children())
    error = told(DataLoader(kind(8, 5), 2, num_workers=2))
    assert "no picture 5" in str(error)
    assert set(psutil.Process().children()) == before


# Streams


@pytest.mark.parametrize(("seed", "num_workers"), [(SEEDS[0], 0), (SEEDS[-1], 2)])
def test_a_sample_of_a_stream_is_named_by_its_place_on_every_rank(standing_crew, seed, num_workers):
    length, batch_size, bad = a_case(seed)
    loader = DataLoader(BrokenStream(length, bad), batch_size, num_workers=num_workers)
    for rank, evaluate in ((0, False), (1, False), (1, True)):
        message, shown = standing_crew(1, told_in_full, loader, assignment(rank, 2, 2), evaluate)[0]
        batch = bad // batch_size
        where = f"batch {batch} of an evaluation" if evaluate else f"step {batch + 1}, "
        error = f"LookupError: no picture {bad}. "
        remedy = f"`next(itertools.islice(dataset, {bad}, None))`"
        assert blames(message, f"sample {bad} of BrokenStream ", f"rank {rank}, ", where, error, remedy)
        assert (IN_WORKER in message) == bool(num_workers)
        assert 'raise self.error(f"no picture {index}")' in shown


# Collating


@pytest.mark.parametrize(("kind", "num_workers"), [(Broken, 1), (BrokenItems, 0), (BrokenStream, 1)])
def test_what_fails_while_collating_is_named_with_all_samples_of_the_shard(standing_crew, num_workers, kind):
    loader = DataLoader(kind(12, None), 6, collate_fn=BrokenCollate(10), num_workers=num_workers)
    message, shown = standing_crew(1, told_in_full, loader, assignment(1, 2, 2))[0]
    samples, error = f"collating samples 9, 10, 11 of {kind.__name__} ", "LookupError: no room for 10. "
    assert blames(message, samples, "rank 1, ", "step 2, shard 1", error, "`collate_fn([...])`")
    assert (IN_WORKER in message) == bool(num_workers)
    assert "in __call__" in shown
    message, _ = standing_crew(1, told_in_full, loader, assignment(1, 2, 2), True)[0]
    samples = f"collating samples 6, 7, 8, 9, 10, 11 of {kind.__name__} "
    assert blames(message, samples, "rank 1, ", "batch 1 of an evaluation")


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
    where = ["an evaluation"] if evaluate else []
    loaders = {
        "batch 4 of Broken": DataLoader(Broken(6, 4), batch_size=None, sampler=Order([0, 4, 2])),
        "batch 3 of BrokenStream": DataLoader(BrokenStream(6, 3), batch_size=None),
        "collating batch 2 of Broken": DataLoader(Broken(6, None), batch_size=None, collate_fn=BrokenCollate(2)),
        "collating batch 1 of BrokenStream": DataLoader(BrokenStream(6, None), batch_size=None, collate_fn=BrokenCollate(1)),
        "batch 5 of Batches": broken_batches(5),
    }
    for named, loader in loaders.items():
        error = told(loader, evaluate=evaluate)
        assert blames(str(error), f"{named} ", "rank 0, ", *where, "LookupError: no ")
        assert ("evaluation" in str(error)) == evaluate
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

    beginning = ("sample 3 of Broken ", *PLACE)
    assert blames(message(awkward), *beginning, " AwkwardError. ")
    assert blames(message(AssertionError), *beginning, " AssertionError: no picture 3. ")
    lines = message(of_many_lines)
    assert blames(lines, *beginning, " RuntimeError: no picture 3\nlockstep.errors: DataError: is not here. ")
    assert "Caught" not in lines


# Whole runs


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


def test_the_command_reports_the_sample(run_here):
    bad = random.Random(2).randrange(40)
    done = run_here(SCRIPT.format(bad=bad), "--nproc-per-node", "2", "--threads", "1", args=("2",))
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if "DataError: " in line]
    message = line.partition("DataError: ")[2]
    assert blames(message, f"sample {bad} of Pictures ", "FileNotFoundError: ", f"'picture-{bad}.png'. ")
    assert 'raise FileNotFoundError(2, "no such file"' in done.stderr
    assert "not reached" not in done.stdout


class Ragged(Numbers):
    """Every second sample has a part more."""

    def __getitem__(self, index):
        return (torch.tensor(super().__getitem__(index)),) * (1 + index % 2)


def test_samples_with_different_numbers_of_parts_are_refused():
    with raises(DataError, "sample-failed"):
        list(choose_source(DataLoader(Ragged(4), 4), assignment()).steps(1, 0))
