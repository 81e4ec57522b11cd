"""Promises of meetings: ranks that come to the same place continue, and other ranks never do."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from codes import raises

from lockstep._base.errors import PartedError, PeerError
from lockstep._loop.departure import Departure
from lockstep._loop.meeting import Meetings, Parting

pytestmark = pytest.mark.timeout(30)


def meet_all(size, work, timeout_s=10.0):
    """What ``work(meetings, rank)`` returned on each of ``size`` ranks, or the error it raised."""
    store = dist.HashStore()

    def run(rank):
        meetings = Meetings(size, store, timeout_s)
        try:
            return work(meetings, rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


@pytest.mark.parametrize("size", [2, 5])
def test_nobody_goes_on_before_the_last_has_come_time_after_time(size):
    came, lock = [0, 0, 0], threading.Lock()

    def work(meetings, rank):
        seen = []
        for number, call in enumerate(["an evaluation", "the end of its loop", "an evaluation"]):
            time.sleep(0.002 * (rank == number))
            with lock:
                came[number] += 1
            meetings.meet(call, 7 + number)
            seen.append(came[number])
        return seen, meetings.place.call

    assert meet_all(size, work) == [([size] * 3, "")] * size


@pytest.mark.parametrize("elsewhere", [("the end of the run", 7), ("an evaluation", 8)])
def test_ranks_at_different_places_or_steps_never_meet(elsewhere):
    def work(meetings, rank):
        return meetings.meet(*(("an evaluation", 7) if rank else elsewhere))

    found = meet_all(3, work, timeout_s=0.1)
    assert [(type(each), each.code) for each in found] == [(PeerError, "meeting-timeout")] * 3


def test_a_rank_that_waits_looks_where_the_others_are_and_ends_if_they_have_parted():
    def work(meetings, rank):
        if rank == 1:
            return None
        asked = []
        meetings.look = lambda waited_s: asked.append(waited_s) or Parting("rank 1 is elsewhere", int)
        with pytest.raises(PartedError, match="rank 1 is elsewhere"):
            meetings.meet("an evaluation", 3)
        return meetings.place.call, len(asked)

    assert meet_all(2, work) == [("an evaluation", 1), None]


def test_the_first_rank_that_finds_a_parting_reports_it_and_none_exits_before():
    reported = []

    def work(meetings, rank):
        if rank == 1:
            return None

        def report():
            time.sleep(0.3)
            reported.append(rank)

        meetings.look = lambda waited_s: Parting("", report)
        try:
            meetings.meet("an evaluation", 3)
        except PartedError as error:
            return error.is_reported_here, len(reported)

    first, _, second = meet_all(3, work)
    assert len(reported) == 1
    assert {first, second} == {(True, 1), (False, 1)}


def test_a_meeting_is_due_after_a_pass_that_was_left_early_until_it_is_held():
    meetings = Meetings(1, None, 1.0)
    assert (meetings.are_held, meetings.is_due) == (False, False)
    departure = Departure(3, "break", "train.py:9 in main", 4, 0)
    meetings.leave(departure, early=True)
    assert (meetings.left, meetings.is_due) == (departure, True)
    meetings.meet("an evaluation", 3)
    assert not meetings.is_due
    meetings.leave(departure, early=False)
    assert not meetings.is_due


def test_one_process_and_a_run_that_is_closed_wait_for_nobody():
    Meetings(1, dist.HashStore(), 0.1).meet("an evaluation", 1)
    meetings = Meetings(2, dist.HashStore(), 0.1)
    with raises(PeerError, "meeting-timeout"):
        meetings.meet("an evaluation", 1)
    meetings.close()
    meetings.meet("an evaluation", 1)
