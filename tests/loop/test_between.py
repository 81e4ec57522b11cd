"""What ranks agree on between two steps: one message, however many topics are due, and none if none
is; the same on every rank; in the order of the topics."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from exchange_ranks import Exchanges
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep._events.measure.step_clock import AGREEING, IN_LOGGING, StepClock
from lockstep._loop.between import Agreement

pytestmark = pytest.mark.timeout(30)
STEPS = range(1, 6)


class Group:
    """What an agreement uses of a group of ranks."""

    def __init__(self, exchanges, rank):
        self.rank, self.size = rank, exchanges.size
        self._exchanges = exchanges

    def all_reduce(self, tensor, op):
        rows = self._exchanges.gather(self.rank, tensor)
        if self.rank == 0:
            self._exchanges.rows.append(rows)
        assert op == "max"
        return torch.stack(rows).amax(0)


class Noted:
    """A topic that is due after some steps, has something to say after others, and notes what is
    settled, in ``settled``."""

    def __init__(self, name, due, speaks, numbers, settled):
        self.name, self.due, self.speaks, self.numbers, self.settled = name, due, speaks, numbers, settled

    def is_due(self, step):
        return step in self.due

    def propose(self, step):
        return [step * number for number in self.numbers] if step in self.speaks else None

    def settle(self, step, largest):
        self.settled.append((step, self.name, list(largest)))


def on_ranks(size, run):
    exchanges = Exchanges(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: run(Group(exchanges, rank)), range(size))), exchanges.rows


some = st.sets(st.sampled_from(STEPS))
# Of 62 bits, as digests are, and their negatives: a conversion by way of floats would round them.
number = st.integers(-(2**62), 2**62).map(lambda found: found // 8)
topics = st.lists(st.tuples(some, some, st.integers(0, 3)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3), topics, st.data())
def test_each_topic_gets_the_largest_of_its_own_numbers_in_one_message(size, drawn, data):
    of_rank = [[data.draw(st.lists(number, min_size=n, max_size=n)) for *_, n in drawn] for _ in range(size)]

    def run(group):
        settled = []
        parts = zip(drawn, of_rank[group.rank], strict=True)
        noted = [Noted(name, due, speaks, numbers, settled) for name, ((due, speaks, _), numbers) in enumerate(parts)]
        agreement = Agreement(group, noted, [].append)
        for step in STEPS:
            agreement.agree(step)
        return settled

    found, messages = on_ranks(size, run)
    entered = [step for step in STEPS if any(step in due for due, *_ in drawn)]
    speaking = {step: [name for name, (_, speaks, _) in enumerate(drawn) if step in speaks] for step in entered}
    expected = [
        (step, name, [max(step * value for value in values) for values in zip(*(of[name] for of in of_rank), strict=True)])
        for step in entered
        for name in speaking[step]
    ]
    assert found == [expected] * size
    with_numbers = [step for step in entered if any(drawn[name][2] for name in speaking[step])]
    assert len(messages) == (len(with_numbers) if size > 1 else 0)


def test_a_topic_that_refuses_the_step_keeps_the_later_ones_from_settling():
    class Refuses(Noted):
        def settle(self, step, largest):
            raise ZeroDivisionError

    def run(group):
        before, after = [], []
        topics = [Noted(0, {1}, {1}, [7], before), Refuses(1, {1}, {1}, [8], []), Noted(2, {1}, {1}, [9], after)]
        with pytest.raises(ZeroDivisionError):
            Agreement(group, topics, [].append).agree(1)
        return before, after

    found, _ = on_ranks(2, run)
    assert found == [([(1, 0, [7])], [])] * 2


def test_what_a_rank_waits_for_a_late_one_there_is_waiting_and_not_logging():
    clocks = [StepClock(SimpleNamespace(pause_s=0.0), torch.device("cpu")) for _ in range(2)]

    def run(group):
        clock = clocks[group.rank]
        clock.begin_pass(0, 1, 1, 0)
        clock.end_step(1, 8)
        if group.rank == 1:
            until_s = time.monotonic() + 5
            while clocks[0].doing != AGREEING and time.monotonic() < until_s:
                time.sleep(0.001)
            time.sleep(0.1)
        Agreement(group, [Noted(0, {1}, {1}, [7], [])], clock.mark).agree(1)
        return clock.doing, clock.so_far["waiting"]

    ((doing, waited_s), _), _ = on_ranks(2, run)
    assert waited_s >= 0.1
    assert doing == IN_LOGGING
