"""A loader that continues from a state has what it would have had without the interruption: the end
of ``take``, the averages of the whole pass, and the number of the next pass. Leading, and following
another loader."""

import pytest
from data_helpers import FakeDriver, Numbers, prepared
from torch.utils.data import DataLoader

from lockstep._data.values import MEAN, Total

pytestmark = pytest.mark.timeout(60)
LENGTH, MOST = 5, 4


def make(driver=None, loader=1):
    return prepared(DataLoader(Numbers(LENGTH), 1), driver=driver, loader=loader)


def note_loss(batch):
    value = float(batch.data[0])
    batch.note({"loss": Total(MEAN, value * (value + 1), value + 1)})


def run(batches, most=None):
    """Takes steps and notes a loss in each. Returns how many."""
    number = 0
    for number, batch in enumerate(batches, 1):
        note_loss(batch)
        if number == most:
            break
    return number


@pytest.mark.parametrize("taken", range(MOST + 1))
def test_a_leading_pass_has_the_end_and_the_averages_of_the_whole(taken):
    whole, begun, again = make(), make(), make()
    assert run(whole.take(MOST)) == MOST
    steps = iter(begun)
    for _ in range(taken):
        note_loss(next(steps))
    next(steps)  # a checkpoint is saved when the next step begins
    again.load_state(begun.state())
    assert run(again.take(MOST)) == MOST - taken
    assert again.averages == whole.averages
    assert run(again) == LENGTH
    assert again.averages != whole.averages


@pytest.mark.parametrize("taken", [1, 3])
def test_a_following_pass_counts_the_newest_batch(taken):
    driver = FakeDriver()
    leading, following, again = make(driver), make(driver, 2), make()
    pairs = iter(leading), iter(following)
    for _ in range(taken):
        next(pairs[0])
        note_loss(next(pairs[1]))
    next(pairs[0])
    again.load_state(following.state())
    whole = make()
    assert run(whole) - run(again) == taken
    assert again.averages == whole.averages


def test_a_following_pass_that_is_abandoned_counts_as_one_also_if_an_earlier_launch_began_it():
    driver = FakeDriver()
    leading, following, again = make(driver), make(driver, 2), make()
    pairs = iter(leading), iter(following)
    [next(each) for each in pairs]
    again.load_state(following.state())
    for loader in (following, again):
        loader.abandon()
        assert (loader.next_pass, loader.num_skipped) == (1, 0)


@pytest.mark.parametrize(("taken", "ended"), [(LENGTH - 1, "left"), (LENGTH, "exhausted")])
def test_a_loop_that_counts_to_the_length_has_exhausted_the_pass(taken, ended):
    driver = FakeDriver()
    loader = make(driver)
    steps = iter(loader)
    for _ in range(taken):
        next(steps)
    loader.finish()
    assert driver.told[-1] == ("leave", ended)
