"""What accelerate's loader says of each batch, and to whom, wherever its pass begins."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lockstep.integrations.accelerate._loader import PromisedLoader
from lockstep.integrations.accelerate._promise import Promise
from lockstep.integrations.accelerate._structure import shape_of

pytestmark = pytest.mark.timeout(20)
LENGTH = 4


class Rest:
    """A prepared loader in whose next pass an earlier launch has made these steps; this rank runs a
    shard of the batches from ``first`` on."""

    def __init__(self, num_skipped=0, length=LENGTH, first=1):
        self.num_skipped, self.length, self.first = num_skipped, length, first

    def __len__(self):
        if self.length is None:
            raise TypeError
        return self.length

    def __iter__(self):
        before, self.num_skipped = self.num_skipped, 0
        for number in range(before + 1, LENGTH + 1):
            yield SimpleNamespace(data=[torch.full((2,), float(number))] if number >= self.first else [])


class Told:
    """A host that notes what it is told."""

    def __init__(self):
        self.calls = []

    def begin_step(self, is_last, *, is_resumed):
        self.calls.append((is_last, is_resumed))

    def skip_pass(self):
        self.calls.append("skipped")


class EvaluatesError(Exception):
    pass


def made(rest, models=None, others=None):
    """The loader and its host, on a rank beside one whose first batch has this structure."""

    def evaluate(*_, **__):
        raise EvaluatesError

    ranks = {"world_size": 2, "all_gather_object": lambda mine: [mine, others]}
    team, told = SimpleNamespace(device=torch.device("cpu"), evaluate=evaluate, **ranks), Told()
    return PromisedLoader(team, (), rest, [nn.Linear(2, 1)] if models is None else models, told), told


@pytest.mark.parametrize("done", range(LENGTH + 1))
@pytest.mark.parametrize("length", [LENGTH, None])
def test_the_last_batch_of_a_pass_is_known_as_such_wherever_the_pass_is_resumed(done, length):
    is_last = dict.fromkeys(range(1, LENGTH + 1)) if length is None else {n: n == LENGTH for n in range(1, LENGTH + 1)}
    loader, told = made(Rest(done, length))
    list(loader)
    assert told.calls == ([(is_last[n], done > 0) for n in range(done + 1, LENGTH + 1)] or ["skipped"])
    told.calls.clear()
    list(loader)
    assert told.calls == [(is_last[n], False) for n in range(1, LENGTH + 1)]


@pytest.mark.parametrize("first", range(1, LENGTH + 1))
def test_a_rank_without_a_shard_of_the_first_batches_gets_them_in_the_structure_of_the_others(first):
    loader, told = made(Rest(first=first), others=shape_of(torch.ones(2)))
    assert [type(batch) for _ in range(2) for batch in loader] == [Promise] * 2 * LENGTH
    assert len(told.calls) == 2 * LENGTH


@pytest.mark.parametrize(
    ("kinds", "gradients", "trains"),
    [
        (["trained"], True, True),
        (["trained"], False, False),
        (["evaluated"], True, False),
        (["frozen"], True, False),
        (["frozen", "evaluated"], True, False),
        (["evaluated", "trained"], True, True),
        (["trained", "frozen"], True, True),
        ([], True, False),
    ],
)
def test_a_pass_trains_if_gradients_are_on_and_a_model_that_is_not_frozen_is_in_training_mode(kinds, gradients, trains):
    models = [nn.Linear(2, 1).train(kind != "evaluated").requires_grad_(kind != "frozen") for kind in kinds]
    loader, told = made(Rest(), models)
    with torch.set_grad_enabled(gradients):
        if trains:
            list(loader)
        else:
            with pytest.raises(EvaluatesError):
                list(loader)
    assert len(told.calls) == (LENGTH if trains else 0)
