"""The position in the data. Shards have the samples that the contract says and name them, whatever
sizes batches have, and after a resume on other numbers of processes. Samplers, streams and ready
batches that know their position: a run that resumes goes on where it was, in any pass. And those
that fill one list, or one tensor, again and again."""

import itertools

import pytest
import torch
from data_helpers import Numbers, Stream, assignment
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from lockstep._data.assignment import ShardAssignment
from lockstep._data.sources import choose_source

pytestmark = pytest.mark.timeout(60)


class Positioned:
    """The numbers 0 to 7. A state that is loaded says where the next pass begins; at the end of a
    pass that is its end."""

    def __init__(self):
        self.position = self.begin = 0

    def __len__(self):
        return 8

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for number in range(begin, 8):
            self.position = number + 1
            yield number

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = self.begin = state["position"]


class PositionedSampler(Positioned, Sampler):
    pass


class PositionedStream(Positioned, IterableDataset):
    pass


class PositionedBatches(Positioned):
    def __len__(self):
        return 4

    def __iter__(self):
        numbers = super().__iter__()
        for pair in zip(numbers, numbers, strict=True):
            yield torch.tensor(pair)


KINDS = {
    "sampler": lambda: DataLoader(Numbers(8), 2, sampler=PositionedSampler()),
    "stream": lambda: DataLoader(PositionedStream(), 2),
    "ready": PositionedBatches,
}


def samples(steps):
    return [batch.tolist() for _, data in steps for batch in data]


@pytest.mark.parametrize("num_taken", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_pass_is_resumed_behind_as_many_steps_as_were_taken(kind, num_taken):
    source = choose_source(KINDS[kind](), assignment())
    list(source.steps(1, 0))
    steps = source.steps(11, 1)  # steps 5 to 10 are another loader's
    for _ in range(num_taken + 1):  # the next is fetched before the last is saved
        next(steps)
    state = source.state(10 + num_taken)
    again = choose_source(KINDS[kind](), assignment())
    again.load_state(state)
    assert samples(again.steps(11, 1, num_taken)) == [[number, number + 1] for number in range(2 * num_taken, 8, 2)]


def test_loaders_that_share_a_generator_go_on_alike():
    def make():
        generator = torch.Generator().manual_seed(1)
        loaders = [DataLoader(Numbers(8), 2, shuffle=True, generator=generator) for _ in range(2)]
        return [choose_source(loader, assignment(loader=number)) for number, loader in enumerate(loaders)]

    whole, again = make(), make()
    under_way = [source.steps(1, 0) for source in whole]
    for steps in under_way:
        next(steps)
        next(steps)
    for source, state in zip(again, [source.state(1) for source in whole], strict=True):
        source.load_state(state)
    resumed = [source.steps(1, 0, 2) for source in again]
    assert [samples([next(steps)]) for steps in resumed] == [samples([next(steps)]) for steps in under_way]
    assert [samples(steps) for steps in resumed] == [samples(steps) for steps in under_way]
    assert [samples(source.steps(5, 1)) for source in again] == [samples(source.steps(5, 1)) for source in whole]


class RefilledList:
    """A batch sampler with one list."""

    def __len__(self):
        return 4

    def __iter__(self):
        indices = [0, 0]
        for first in range(0, 8, 2):
            indices[:] = first, first + 1
            yield indices


class RefilledTensor:
    """Ready batches in one tensor."""

    def __init__(self):
        self.batch = torch.zeros(2, dtype=torch.int64)

    def __len__(self):
        return 4

    def __iter__(self):
        for first in range(0, 8, 2):
            self.batch.copy_(torch.tensor([first, first + 1]))
            yield self.batch


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    "make", [lambda: DataLoader(Numbers(8), batch_sampler=RefilledList()), RefilledTensor], ids=["list", "tensor"]
)
def test_what_is_filled_again_and_again_is_used_each_time(make, accumulate):
    place = ShardAssignment(rank=0, world_size=1, num_shards=1, seed=0, loader=1, accumulate=accumulate)
    steps = choose_source(make(), place).steps(1, 0)
    assert [batch.tolist() for _, data in steps for batch in data] == [[0, 1], [2, 3], [4, 5], [6, 7]]


class Listed(Dataset):
    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


class Streamed(IterableDataset):
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def numbered(sizes):
    return list(torch.arange(sum(sizes)).split(sizes))


def in_lists(sizes):
    return DataLoader(Numbers(sum(sizes)), batch_sampler=[batch.tolist() for batch in numbered(sizes)])


# All have the samples 0, 1, 2, ... in this order.
NUMBERED = {
    "a table": in_lists,
    "a stream": lambda sizes: DataLoader(Stream(sum(sizes)), sizes[0]),  # batches of one size, but the last
    "ready batches": numbered,
    "a table of ready batches": lambda sizes: DataLoader(Listed(numbered(sizes)), batch_size=None),
    "a stream of ready batches": lambda sizes: DataLoader(Streamed(numbered(sizes)), batch_size=None),
}


def take_steps(make, world_size, num_steps, skip=0, state=None, **place):
    """``{(step, shard, part): (names, samples)}`` of the next steps of a pass on all ranks, and the
    state after them."""
    seen = {}
    for rank in range(world_size):
        place_of_rank = ShardAssignment(rank=rank, world_size=world_size, seed=0, loader=1, **place)
        source = choose_source(make(), place_of_rank)
        if state is not None:
            source.load_state(state)
        steps = source.steps(1, 0, skip)
        for plan, data in itertools.islice(steps, num_steps):
            source.taken(plan.number)
            for micro, samples in zip(plan.micro_batches, data, strict=True):
                seen[plan.number, micro.shard, micro.part] = list(micro.samples), samples.tolist()
        next(steps, None)  # the next is fetched before the state is saved
    return seen, source.state(skip + num_steps)


def expected_steps(batches, num_shards, accumulate):
    """As ``take_steps``, by the definition in the contract."""
    found = {}
    for number, batch in enumerate(batch for batch in batches if len(batch)):
        step, part = divmod(number, accumulate)
        for shard, rows in enumerate(map(torch.Tensor.tolist, batch.tensor_split(num_shards))):
            if rows:
                found[step + 1, shard, part] = rows, rows
    return found


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([*NUMBERED]),
    sizes=st.lists(st.integers(0, 7), max_size=7).map(lambda sizes: [4, *sizes]),  # some may be empty
    worlds=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    num_shards=st.integers(4, 6),
    accumulate=st.integers(1, 3),
    stop=st.integers(1, 8),
)
@example(kind="ready batches", sizes=[4, 3, 5, 4], worlds=(1, 2), num_shards=4, accumulate=1, stop=2)
def test_shards_have_and_name_their_samples_also_after_a_resume(kind, sizes, worlds, num_shards, accumulate, stop):
    batches = numbered(sizes) if kind != "a stream" else list(torch.arange(sum(sizes)).split(sizes[0]))
    expected = expected_steps(batches, num_shards, accumulate)
    num_steps = max(step for step, _, _ in expected)
    stop, place = min(stop, num_steps), {"num_shards": num_shards, "accumulate": accumulate}
    found, state = take_steps(lambda: NUMBERED[kind](sizes), worlds[0], stop, **place)
    rest, _ = take_steps(lambda: NUMBERED[kind](sizes), worlds[1], num_steps - stop, stop, state, **place)
    assert found | rest == expected
    assert {step for step, _, _ in rest} == set(range(stop + 1, num_steps + 1))


def test_behind_a_pass_that_was_left_the_next_begins_where_it_does_without_a_resume():
    """And not at the position that the sampler has loaded."""
    source, again = (choose_source(KINDS["sampler"](), assignment()) for _ in range(2))
    begun = source.steps(1, 0)
    for _ in range(2):
        source.taken(next(begun)[0].number)
    begun.close()
    again.load_state(source.state(None))
    assert samples(again.steps(11, 1)) == samples(source.steps(11, 1)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
