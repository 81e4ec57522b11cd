"""Samplers, streams and ready batches that know their position: a run that resumes goes on where it
was, in any pass. And those that fill one list, or one tensor, again and again."""

import pytest
import torch
from data_helpers import Numbers, assignment
from torch.utils.data import DataLoader, IterableDataset, Sampler

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
