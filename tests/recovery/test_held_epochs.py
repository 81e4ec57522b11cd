"""A loop over epochs ends where the script leaves it, whatever still holds it."""

import pytest

from lockstep._base.errors import UsageError
from lockstep._loop.epochs import EpochLoop, Epochs

pytestmark = pytest.mark.timeout(100)
SCRIPT = """
from striking import arm, network, samples, say_last_words, strike
import torch
from torch import nn

import lockstep

team = lockstep.join()
arm(team)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = team.prepare(model, optimizer, samples())


def train():
    for batch in loader:
        for features, labels in batch.shards:
            team.backward(nn.functional.cross_entropy(model(features), labels))
        optimizer.step()
        optimizer.zero_grad()
        strike(team)


def as_tqdm_does(epochs):
    for epoch in epochs:
        yield epoch
        print("epoch", epoch)


bar = {bar}
for epoch in bar:
    train()
    if epoch == 1:
        break
{then}:
    train()
say_last_words(team, model, optimizer)
"""
BARS = {
    "by a name": "team.epochs(5)",
    "by its iterator": "iter(team.epochs(5))",
    "by a generator": "as_tqdm_does(team.epochs(5))",
}
THEN = {"another loop": "for epoch in team.epochs(2)", "what is left of it": "for epoch in bar"}


@pytest.mark.parametrize(
    ("bar", "then"),
    [
        ("by a name", "another loop"),
        ("by its iterator", "another loop"),
        ("by a generator", "another loop"),
        ("by a name", "what is left of it"),
        ("by its iterator", "what is left of it"),
    ],
)
def test_a_run_that_is_stopped_in_a_later_loop_goes_on_in_it(lab, undisturbed, bar, then):
    script, told = SCRIPT.format(bar=BARS[bar], then=THEN[then]), ""
    for number in (7, 13, 18):
        ended = lab.run(script, fault={"at": "step", "number": number, "what": "SIGTERM", "to": "me"})
        told += f"{ended}\n"
        assert ended.status == 75, told
    ended = lab.run(script)
    assert lab.resumes() == [7, 13, 18], told
    assert ended.words == undisturbed(script), f"{told}{ended}"


class Told:
    """What a loop does, of which there is one at a time, as ``Loop`` does it."""

    def __init__(self):
        self.done = []
        self._open = None

    def epochs(self, number):
        return Epochs(
            number, lambda epochs: EpochLoop(self._turns(epochs), self._begin, lambda _: self.done.append("error"))
        )

    def _begin(self, loop):
        if self._open is not None:
            self._open.leave()
        self._open = loop

    def _turns(self, epochs):
        self.done.append("enter")
        try:
            for epoch in range(epochs.next, epochs.num_epochs):
                epochs.next = epoch + 1
                yield epoch
            self.done.append("end")
        finally:
            self.done.append("leave")


@pytest.mark.quick
def test_each_loop_over_the_same_epochs_goes_through_those_that_are_left():
    told = Told()
    epochs = told.epochs(5)
    for epoch in epochs:
        if epoch == 1:
            break
    assert list(epochs) == [2, 3, 4]
    assert told.done == ["enter", "leave", "enter", "end", "leave"]


@pytest.mark.quick
def test_a_later_loop_ends_the_earlier_one_which_does_not_go_on():
    told = Told()
    first = iter(told.epochs(3))
    assert next(first) == 0
    assert next(iter(told.epochs(3))) == 0
    assert told.done == ["enter", "leave", "enter"]
    with pytest.raises(UsageError):
        next(first)


@pytest.mark.quick
def test_the_first_of_some_epochs_can_be_taken_by_hand():
    told = Told()
    epochs = told.epochs(3)
    assert [next(epochs), next(epochs), *epochs] == [0, 1, 2]
