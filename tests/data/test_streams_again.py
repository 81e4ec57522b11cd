"""A run that resumes within a pass over a stream goes on with the samples that are left, or says
that it cannot."""

import copy
import gc

import pytest
from data_helpers import assignment, deal_all, same
from stream_kinds import INCOMPLETE, NUM_SAMPLES, OTHERWISE, REPEATING, SeedsOfItsOwn, missing
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lockstep._base.errors import MismatchError
from lockstep._data.assignment import ShardAssignment
from lockstep._data.evaluation_source import EvaluationKey, EvaluationSource
from lockstep._data.sources import choose_source

# WebDataset's
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")]
SHARDS = 3
WITH_WORKERS = ("a generator of its own", "a state without the buffer", "ready", "WebDataset, random")
"""Of these kinds, `make test` fetches with workers too."""


def long_unless_with_workers(kind, *args):
    return pytest.param(kind, *args, marks=() if kind in WITH_WORKERS else pytest.mark.long)


KINDS = [(kind, 0) for kind in REPEATING] + [long_unless_with_workers(kind, 2) for kind in REPEATING]


class Launch:
    """One launch of a run on some ranks, all in this process."""

    def __init__(self, make, world_size, num_workers, state=None, **place):
        self.sources = []
        self.left = []
        """Passes under way, which must not end before their state was asked for."""
        for rank in range(world_size):
            loader = make()
            if num_workers and hasattr(loader, "num_workers"):
                loader.num_workers = num_workers
                loader.prefetch_factor = 2
            place_of_rank = ShardAssignment(rank=rank, world_size=world_size, num_shards=SHARDS, seed=0, loader=1, **place)
            self.sources.append(choose_source(loader, place_of_rank))
            if state is not None:
                self.sources[-1].load_state(copy.deepcopy(state))

    def take(self, first, epoch, skip=0, most=None):
        """``{step: batches of its shards}`` of a pass, or of its first steps that were not
        skipped."""
        taken = {}
        for source in self.sources:
            steps = source.steps(first, epoch, skip)
            for number, (plan, data) in enumerate(steps, 1):
                found = taken.setdefault(plan.number, {})
                found.update({micro.shard: batch for micro, batch in zip(plan.micro_batches, data, strict=True)})
                if number == most:
                    break
            self.left.append(steps)
        return taken

    def state(self, step):
        if step is None:
            self.close()
        states = [source.state(step) for source in self.sources]
        self.close()
        assert all(same(state, states[0]) for state in states)
        return states[0]

    def close(self):
        while self.left:
            self.left.pop().close()


@pytest.fixture
def make(request, kind, require, tmp_path):
    package = missing(kind)
    require(package, package and f"{package} is not installed (pip install {package})")
    yield lambda: (REPEATING | OTHERWISE)[kind](tmp_path)
    if kind.startswith("WebDataset"):
        gc.collect()  # now, while those warnings are ignored


def samples(taken):
    return sorted(int(sample) for shards in taken.values() for batch in shards.values() for sample in batch)


@pytest.mark.parametrize(("kind", "num_workers"), KINDS)
def test_what_follows_a_resume_is_what_would_have_followed(kind, make, num_workers):
    undisturbed = Launch(make, 1, 0)
    first = undisturbed.take(1, 0)
    second = undisturbed.take(len(first) + 1, 1)
    assert samples(first) == samples(second) == list(range(NUM_SAMPLES))
    for num_taken in (4,) if num_workers else (1, 4, len(first)):
        begun = Launch(make, 1 if num_workers else 2, num_workers)
        before = begun.take(1, 0, most=num_taken)
        resumed = Launch(make, 2 if num_workers else 3, num_workers, begun.state(num_taken))
        after = resumed.take(1, 0, num_taken)
        assert same(before | after, first)
        before = resumed.take(len(first) + 1, 1, most=num_taken)
        again = Launch(make, 1, 0, resumed.state(len(first) + num_taken))
        assert same(before | again.take(len(first) + 1, 1, num_taken), second)


@pytest.mark.parametrize(("kind", "num_workers"), KINDS)
def test_a_pass_begins_alike_after_a_resume(kind, make, num_workers):
    undisturbed = Launch(make, 1, 0)
    num_steps = len(undisturbed.take(1, 0))
    state = undisturbed.state(None)
    second = undisturbed.take(num_steps + 1, 1)
    assert same(Launch(make, 1, num_workers, state).take(num_steps + 1, 1), second)


@pytest.mark.parametrize("kind", REPEATING)
def test_a_line_says_so_if_a_state_was_not_enough(kind, make, capfd):
    begun = Launch(make, 1, 0)
    begun.take(1, 0, most=4)
    Launch(make, 3, 0, begun.state(4)).take(1, 0, 4)
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("lockstep: ")]
    assert ["state_dict" in line for line in said] == [True] * (kind in INCOMPLETE)


@pytest.mark.parametrize("num_left", [pytest.param(1, marks=pytest.mark.long), 4])
@pytest.mark.parametrize(("kind", "num_workers"), KINDS)
def test_behind_a_pass_that_was_left_the_next_is_the_same_after_a_resume(kind, make, num_workers, num_left):
    undisturbed = Launch(make, 1, 0)
    undisturbed.take(1, 0, most=num_left)
    state = undisturbed.state(None)
    second = undisturbed.take(num_left + 1, 1)
    assert same(Launch(make, 1, num_workers, state).take(num_left + 1, 1), second)
    for num_taken in () if num_workers else (1, 2):
        resumed = Launch(make, 1, 0, state)
        before = resumed.take(num_left + 1, 1, most=num_taken)
        again = Launch(make, 2, 0, resumed.state(num_left + num_taken))
        assert same(before | again.take(num_left + 1, 1, num_taken), second)


# in a worker it starts over
@pytest.mark.parametrize("kind", [long_unless_with_workers(kind) for kind in REPEATING if kind != "a state, goes on"])
def test_behind_a_pass_that_was_left_the_next_is_the_same_with_workers(kind, make):
    alone, with_workers = Launch(make, 1, 0), Launch(make, 1, 2)
    for launch in (alone, with_workers):
        launch.take(1, 0, most=3)
        launch.close()
    assert same(with_workers.take(4, 1), alone.take(4, 1))


def test_evaluations_are_the_same_with_workers():
    found = []
    for num_workers in (0, 2):
        loader = DataLoader(SeedsOfItsOwn(), 5, collate_fn=list, num_workers=num_workers)
        source = EvaluationSource(loader, assignment())
        keys = [EvaluationKey(step=step, number=0) for step in (1, 2)]
        found.append([[fetch() for _, _, fetch in source.deal(key)] for key in keys])
    assert found[0] == found[1]
    # as a resumed run, which has not made the first, begins the second
    assert found[0][0] == found[0][1]


@pytest.mark.parametrize("kind", REPEATING)
def test_a_state_that_was_loaded_stays_until_a_pass_begins(kind, make):
    begun = Launch(make, 1, 0)
    begun.take(1, 0, most=3)
    state = begun.state(3)
    assert same(Launch(make, 1, 0, state).state(None), state)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", OTHERWISE)
def test_what_does_not_repeat_itself_is_refused_unless_it_is_allowed(kind, make, num_workers):
    for num_taken in (4,) if num_workers else (1, 4, 9):
        begun = Launch(make, 1, num_workers)
        begun.take(1, 0, most=num_taken)
        state = begun.state(num_taken)
        with pytest.raises(MismatchError, match="--allow data"):
            Launch(make, 1, num_workers, state).take(1, 0, num_taken)
        Launch(make, 1, num_workers, state, allows_other_data=True).take(1, 0, num_taken)


class InAWorker(IterableDataset):
    def __iter__(self):
        sees = get_worker_info() is not None  # also where it is no generator
        return (sees or get_worker_info() is not None for _ in range(2))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_that_is_read_whole_sees_no_worker_and_what_makes_batches_does(num_workers):
    def collate(samples):
        return [*samples, get_worker_info() is not None]

    seen, _ = deal_all(lambda: DataLoader(InAWorker(), 1, collate_fn=collate, num_workers=num_workers), 1, 1)
    assert list(seen.values()) == [[False, num_workers > 0]] * 2
