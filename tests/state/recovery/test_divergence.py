"""Promises of the comparison of ranks: all compare after the same steps, seldom enough to cost
nothing and often enough, and before anything is saved; what differs on one is found by all.

The ranks are threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from codes import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep._base.errors import MismatchError
from lockstep._loop.between import Agreement
from lockstep._state.recovery import divergence
from lockstep._state.recovery.divergence import DivergenceCheck
from lockstep._state.recovery.fingerprint import Fingerprint
from lockstep._state.recovery.run_state import RunState

pytestmark = pytest.mark.timeout(60)
MOST_STEPS, MOST_OF_TIME = 1000, 0.002


class Meeting:
    """Where the ranks exchange values."""

    def __init__(self, size):
        self._values, self._all = [None] * size, []
        self._barrier = threading.Barrier(size, lambda: setattr(self, "_all", list(self._values)))

    def gather(self, rank, value):
        self._values[rank] = value
        self._barrier.wait(timeout=50)
        return self._all

    def leave(self):
        self._barrier.abort()


class Rank:
    """A rank with a tensor and a number, whose comparisons take ``cost_s`` of its clock."""

    def __init__(self, rank, size, meeting, cost_s):
        self.rank, self.size, self.now_s, self.num_compared = rank, size, 100.0 * rank, 0
        self.weights, self.table = torch.arange(4.0), {"lr": 0.1}
        state, outer = RunState(), self
        state.register("weights", self.weights)
        state.register("table", self.table)

        class Costly(Fingerprint):
            def _read(self, *args):
                outer.num_compared += 1
                outer.now_s += cost_s
                return super()._read(*args)

        self.fingerprint = Costly(state)
        self.all_gather_plain = lambda value: meeting.gather(rank, value)
        self.all_reduce = lambda numbers, _: torch.stack(meeting.gather(rank, numbers.clone())).amax(0)
        self.check = DivergenceCheck(self.fingerprint, self)
        self.agree = Agreement(self, [self.check], [].append).agree


def on_ranks(size, run, cost_s=0.001):
    """What ``run(rank)`` returned on each rank, or the MismatchError that it raised."""
    meeting, here = Meeting(size), threading.local()

    def start(number):
        here.rank = Rank(number, size, meeting, cost_s)
        try:
            return run(here.rank)
        except MismatchError as error:
            return error
        except BaseException:
            meeting.leave()
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divergence, "time", SimpleNamespace(perf_counter=lambda: here.rank.now_s))
        patch.setattr(divergence, "_stream", lambda: 0)  # of the process
        with ThreadPoolExecutor(size) as threads:
            return list(threads.map(start, range(size)))


def steps_compared(rank, num_steps, step_s, wanted=(), saved=(), change=None):
    """The steps after which this rank has compared itself, as often as it has."""
    rank.fingerprint.want(lambda step: step in wanted)
    compared = []
    for step in range(1, num_steps + 1):
        before = rank.num_compared
        rank.now_s += step_s * (1 + rank.rank / 10)
        if change is not None and (rank.rank, step) == change[:2]:
            change[2](rank)
        rank.last = step
        rank.agree(step)
        if step in saved:
            rank.check.before_save(step)
        compared += [step] * (rank.num_compared - before)
    return compared


@settings(deadline=None, max_examples=10)
@given(st.sampled_from([2, 3]), st.sampled_from([1e-4, 0.01, 1.0]), st.sampled_from([1e-6, 1e-3, 0.1, 30.0]))
def test_comparisons_take_a_small_part_of_the_time_and_come_often_enough(size, step_s, cost_s):
    num_steps = 2100
    first, *others = on_ranks(size, lambda rank: steps_compared(rank, num_steps, step_s), cost_s)
    assert all(other == first for other in others)
    assert max(end - begin for begin, end in pairwise([0, *first, num_steps])) <= MOST_STEPS
    least = 3 + num_steps // MOST_STEPS  # the first ones have no estimate of the steps' time
    assert len(first) <= least + MOST_OF_TIME * 1.2 * num_steps * step_s / cost_s


@settings(deadline=None, max_examples=25)
@given(st.sets(st.integers(1, 60)), st.sets(st.integers(1, 60)))
def test_after_steps_that_are_wanted_or_saved_the_ranks_are_compared_once(wanted, saved):
    first, second = on_ranks(2, lambda rank: steps_compared(rank, 60, 1e-5, wanted, saved))
    assert first == second
    assert len(first) == len(set(first))
    assert wanted | saved <= set(first)


CHANGES = {
    "a tensor": lambda rank: rank.weights[2].add_(1e-6),
    "a number": lambda rank: rank.table.update(lr=0.1000001),
    "the zero": lambda rank: rank.weights[0].neg_(),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("odd", [0, 2])
def test_what_differs_on_one_rank_is_found_by_all_in_the_next_comparison(what, odd):
    undisturbed, *_ = on_ranks(3, lambda rank: steps_compared(rank, 60, 1e-5, {20, 40}))
    seen = []

    def run(rank):
        try:
            return steps_compared(rank, 60, 1e-5, {20, 40}, change=(odd, 15, CHANGES[what]))
        finally:
            seen.append((rank.last, rank.check.have_diverged))

    found = on_ranks(3, run)
    assert [type(each) for each in found] == [MismatchError] * 3
    assert {each.code for each in found} == {"ranks-diverged"}
    assert f"differs on rank {odd} " in str(found[0])
    assert seen == [(min(step for step in undisturbed if step >= 15), True)] * 3


# The end


def ends(*, changes=(), rewrites=()):
    """What the comparison at the end returns on three ranks, of which some have changed, or written
    again, a tensor after the last epoch; and the codes of warnings."""
    codes = []

    def run(rank):
        steps_compared(rank, 3, 0.1)
        rank.check.leave_epochs()
        if rank.rank in changes:
            rank.weights += 1
        if rank.rank in rewrites:
            rank.weights.copy_(rank.weights.clone())
        return rank.check.compare_at_end(3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divergence, "warn", lambda text, *, code: codes.append(code))
        return on_ranks(3, run), codes


def test_at_the_end_rank_0_alone_may_have_changed_something():
    assert ends() == ([True] * 3, [])
    assert ends(changes=(0, 1, 2)) == ([True] * 3, [])
    assert ends(changes=(0,)) == ([False] * 3, ["changed-on-rank-0"])


@pytest.mark.parametrize("given", [{"changes": (1,)}, {"changes": (0, 2)}, {"changes": (0,), "rewrites": (1,)}])
def test_what_another_rank_has_changed_or_loaded_meanwhile_is_an_error(given):
    found, codes = ends(**given)
    assert (codes, [each.code for each in found]) == ([], ["ranks-diverged"] * 3)


def test_one_rank_has_nothing_to_compare():
    [alone] = on_ranks(1, lambda rank: (steps_compared(rank, 5, 0.1, {2}, {3}), rank.check.compare_at_end(5)))
    assert alone == ([], True)


def test_a_difference_is_an_error_before_a_save_too():
    def run(rank):
        rank.agree(1)
        rank.agree(2)
        rank.weights[1] += rank.rank
        with raises(MismatchError, "ranks-diverged"):
            rank.check.before_save(3)

    assert on_ranks(2, run) == [None, None]
