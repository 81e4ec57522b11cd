"""Epochs that a host library reports: each of them begins and ends once, in order, and a loop that
has not reached its last epoch counts as left early."""

import itertools

import pytest
from codes import raises

from lockstep._base.errors import UsageError
from lockstep._loop.hosted import HostedEpochs


class Turns:
    """Notes what the loop is asked to do."""

    def __init__(self):
        self.done = []

    def begin_epoch(self, epoch, num_epochs):
        self.done.append(("begin", epoch, num_epochs))

    def end_epoch(self, epoch):
        self.done.append(("end", epoch))

    def leave_epochs(self, num_epochs):
        self.done.append(("leave", num_epochs))


def loop_of(num_epochs, first):
    turns = Turns()
    return HostedEpochs(num_epochs, first, turns, is_within=False), turns.done


@pytest.mark.parametrize(("num_epochs", "first"), [*itertools.product(range(4), range(5))])
@pytest.mark.parametrize("early", [False, True])
def test_epochs_begin_and_end_once_wherever_the_host_ends(num_epochs, first, early):
    for last in range(first, max(first, num_epochs) + 1):
        loop, done = loop_of(num_epochs, first)
        for epoch in range(first, last):
            loop.begin(epoch)
        expected = [event for epoch in range(first, last) for event in (("begin", epoch, num_epochs), ("end", epoch))]
        if early or last < num_epochs:  # the newest epoch does not end
            expected = [*expected[:-1], ("leave", None)]
        else:
            expected.append(("leave", max(first, num_epochs)))
        assert not loop.is_over
        for _ in range(2):  # the second call does nothing
            loop.end(early=early)
            assert done == expected
        assert loop.is_over


@pytest.mark.parametrize(("num_epochs", "first"), [*itertools.product(range(4), range(5))])
def test_an_epoch_that_is_not_due_is_refused_and_nothing_ends(num_epochs, first):
    for last in range(first, max(first, num_epochs) + 1):
        loop, done = loop_of(num_epochs, first)
        for epoch in range(first, last):
            loop.begin(epoch)
        before = list(done)
        for epoch in {*range(-1, num_epochs + 2)} - ({last} if last < num_epochs else set()):
            with raises(UsageError, "epoch-out-of-order"):
                loop.begin(epoch)
        assert done == before
        loop.leave()
        with raises(UsageError, "epoch-out-of-order"):
            loop.begin(last)
