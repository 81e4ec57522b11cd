"""Promises of loops over ``team.epochs()``: one at a time, each over the epochs that are left."""

import pytest

from lockstep._base.errors import UsageError
from lockstep._loop.epochs import EpochLoop, Epochs

pytestmark = pytest.mark.timeout(20)


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


def test_each_loop_over_the_same_epochs_goes_through_those_that_are_left():
    told = Told()
    epochs = told.epochs(5)
    for epoch in epochs:
        if epoch == 1:
            break
    assert list(epochs) == [2, 3, 4]
    assert told.done == ["enter", "leave", "enter", "end", "leave"]


def test_a_later_loop_ends_the_earlier_one_which_does_not_go_on():
    told = Told()
    first = iter(told.epochs(3))
    assert next(first) == 0
    assert next(iter(told.epochs(3))) == 0
    assert told.done == ["enter", "leave", "enter"]
    with pytest.raises(UsageError):
        next(first)


def test_the_first_of_some_epochs_can_be_taken_by_hand():
    told = Told()
    epochs = told.epochs(3)
    assert [next(epochs), next(epochs), *epochs] == [0, 1, 2]
