"""One machine's workers of a run on several: what they are sent when they must end or stop, and
what is told of them. The thread, the start and its supervision are real, on a clock that jumps
(``played``)."""

import threading
import time
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1
from types import SimpleNamespace

import pytest
from launch_helpers import until
from played import LATER_S, PlayedLaunch

from lockstep._base.errors import LaunchError
from lockstep._launch import ending
from lockstep._launch.elastic import workers as workers_module
from lockstep._launch.elastic.workers import Workers
from lockstep._launch.output import OutputPlan
from lockstep._launch.supervise import GRACE_S, SAVING_GRACE_S

pytestmark = pytest.mark.timeout(30)
TIMEOUT_S = 200.0
SAVE_S = max(SAVING_GRACE_S, TIMEOUT_S)


class Play(PlayedLaunch):
    """Workers of a node, which begin by watching for these signals, to save their run. Calls of
    their owner come from another thread, as they do."""

    def __init__(self, *args, watches=(SIGINT, SIGTERM, SIGUSR1), **more):
        super().__init__(*args, settings={"timeout_s": TIMEOUT_S}, **more)
        self.each(1.0, "watches", *watches)

    def owner(self, when_s, name, *args, **more):
        """The owner calls this method then, while nothing else happens."""

        def call():
            thread = threading.Thread(target=getattr(self.made, name), args=args, kwargs=more)
            thread.start()
            thread.join()

        self.at(when_s, call)

    def run(self):
        plays = threading.Event()
        self.at(0.0, plays.wait)
        self.made = Workers(self.spec, self.server, OutputPlan())
        plays.set()
        self.made.wait()
        self.release()
        return self.made


@pytest.fixture
def play(tmp_path, monkeypatch):
    monkeypatch.setattr(workers_module, "_OWN_WAY_S", 0.01)
    return lambda **more: Play(tmp_path, monkeypatch, **more)


# A step that takes long: it does nothing at a signal.


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("watches", [(), (SIGTERM, SIGUSR1), (SIGINT, SIGTERM, SIGUSR1)])
def test_workers_that_have_lost_the_other_machines_are_given_no_time_to_save(play, watches, at_once):
    launch = play(watches=watches)
    launch.owner(2.0, "end", at_once=at_once)
    workers = launch.run()
    expected = [(SIGINT, 2.0), (SIGKILL, 2.0 + GRACE_S)]
    assert launch.sent() == {0: expected, 1: expected}
    assert (workers.failures, workers.is_running, workers.is_stopping) == ((), False, True)
    assert (workers.outcome.stopped_by, workers.outcome.stopped_with) == (SIGINT, None)
    assert ending.is_stopped(launch.spec.private_dir)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("number", [SIGINT, SIGTERM, SIGUSR1])
def test_workers_that_are_stopped_save_the_run(play, number, at_once):
    launch, seen = play(), []
    for when_s in (1.5, 8.0):
        launch.at(when_s, lambda: seen.append((launch.made.is_running, launch.made.is_stopping)))
    launch.owner(2.0, "stop", number, at_once=at_once)
    launch.each(9.0, "saves", 75)
    workers = launch.run()
    assert seen == [(True, False), (True, True)]
    assert launch.sent() == {0: [(number, 2.0)], 1: [(number, 2.0)]}
    assert (workers.outcome.stopped_by, workers.outcome.stopped_with) == (number, 75)
    assert (workers.failures, workers.is_stopping, workers.outcome.was_cut_short) == ((), True, False)


def test_a_save_is_waited_for_as_long_as_a_collective(play):
    launch = play()
    launch.owner(2.0, "stop", SIGTERM)
    launch.run()
    expected = [(SIGTERM, 2.0), (SIGKILL, 2.0 + SAVE_S)]
    assert launch.sent() == {0: expected, 1: expected}


@pytest.mark.parametrize("second", ["stop", "end"])
def test_what_is_being_saved_is_killed_by_a_second_call(play, second):
    launch = play()
    launch.owner(2.0, "stop", SIGTERM, at_once=True)
    launch.owner(2.0 + LATER_S, second, *((SIGTERM,) if second == "stop" else ()), at_once=True)
    workers = launch.run()
    expected = [(SIGTERM, 2.0), (SIGKILL, 2.0 + LATER_S)]
    assert launch.sent() == {0: expected, 1: expected}
    assert workers.is_stopping


@pytest.mark.parametrize("name", ["stop", "end"])
def test_workers_that_are_ending_by_themselves_are_asked_nothing_and_tell_why(play, name):
    launch = play()
    launch.rank(0, 2.0, "reports")
    launch.owner(2.1, name, *((SIGTERM,) if name == "stop" else ()))
    launch.rank(0, 2.2, "exits", 1)
    workers = launch.run()
    assert launch.sent() == {0: [], 1: [(SIGINT, 2.0), (SIGKILL, 2.0 + GRACE_S)]}
    assert [failure.rank for failure in workers.failures] == [0]
    assert (workers.outcome.stopped_by, workers.is_stopping) == (None, False)


def test_workers_get_a_moment_to_notice_by_themselves_that_others_were_lost(play, monkeypatch):
    monkeypatch.setattr(workers_module, "_OWN_WAY_S", 60.0)
    launch, looks = play(), []

    def look():
        looks.append(time.monotonic())
        return looks[-1]

    monkeypatch.setattr(workers_module, "time", SimpleNamespace(monotonic=look))
    owner = threading.Thread(target=lambda: launch.made.end())

    def end():
        owner.start()
        until(lambda: len(looks) > 2 or not owner.is_alive())  # it waits, or has asked already

    launch.at(2.0, end)
    launch.rank(1, 2.1, "fails")
    workers = launch.run()
    owner.join()
    assert [failure.rank for failure in workers.failures] == [1]
    assert workers.outcome.stopped_by is None


def test_workers_that_have_ended_are_asked_nothing(play):
    launch = play()
    launch.each(2.0, "exits", 0)
    workers = launch.run()
    workers.end()
    workers.stop(SIGTERM, at_once=True)
    assert (workers.failures, workers.is_stopping, workers.outcome.stopped_by) == ((), False, None)


def test_a_start_that_fails_is_the_failure_of_the_first_rank_and_a_fault_of_the_launcher_is_raised(play, monkeypatch):
    launch = play()
    launch.at(2.0, lambda: launch.server.says(died=True))
    [failure] = launch.run().failures
    assert (failure.rank, failure.kind) == (0, LaunchError.__name__)

    launch = play()
    launch.at(2.0, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        _ = launch.run().failures
