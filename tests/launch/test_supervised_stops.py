"""What a launcher does when it is asked to stop: which worker gets which signal and when, for how
long a save is waited for, and what the result says. On a clock that jumps (``played``)."""

import functools
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1

import pytest
from played import JOINED, LATER_S, PlayedLaunch

from lockstep._base.errors import LaunchError
from lockstep._launch import ending, failures
from lockstep._launch.stages import ECHO_S, KILL_S
from lockstep._launch.supervise import GRACE_S, SAVING_GRACE_S

pytestmark = pytest.mark.timeout(30)
TIMEOUT_S = 200.0


@pytest.fixture
def play(tmp_path, monkeypatch):
    return functools.partial(PlayedLaunch, tmp_path, monkeypatch)


@pytest.fixture
def saving(play):
    """``saving(nproc)``: a launch whose workers all save themselves on SIGTERM, which comes at
    2."""

    def start(nproc=2, timeout_s=TIMEOUT_S, **spec):
        launch = play(nproc=nproc, settings={"timeout_s": timeout_s}, **spec)
        launch.each(1.0, "watches", SIGTERM, SIGUSR1)
        launch.signal(2.0, SIGTERM)
        return launch

    return start


def alike(ranks, got):
    """What each of these ranks was sent, if all were sent the same."""
    return {rank: [*got] for rank in ranks}


def told(result):
    return result.stopped_by, result.stopped_with, result.was_cut_short, len(result.failures)


@pytest.mark.parametrize("number", [SIGINT, SIGTERM, SIGUSR1])
def test_a_run_that_saves_nothing_is_interrupted_and_killed_after_a_moment(play, number):
    launch = play(nproc=2)
    launch.signal(2.0, number)
    result = launch.run()
    assert launch.sent() == alike((0, 1), [(SIGINT, 2.0), (SIGKILL, 2.0 + GRACE_S)])
    assert told(result) == (number, None, False, 0)
    assert result.joined == JOINED
    assert ending.is_stopped(launch.spec.private_dir)
    assert [succeeded for *_, succeeded in launch.swept] == [False]


def test_what_fails_after_the_signal_is_as_requested(play):
    launch = play(nproc=3)
    launch.signal(2.0, SIGINT)
    launch.rank(0, 2.5, "fails", kind="KeyboardInterrupt")
    launch.rank(1, 2.5, "fails")
    launch.rank(2, 2.5, "exits", 5)
    assert told(launch.run()) == (SIGINT, None, False, 0)


def test_a_keyboard_interrupt_that_nobody_sent_is_a_failure(play):
    launch = play(nproc=2)
    launch.rank(1, 2.5, "fails", kind="KeyboardInterrupt", exit_status=130)
    result = launch.run()
    assert told(result) == (None, None, False, 1)
    assert result.failures[0].rank == 1


def test_a_second_signal_kills_at_once_and_the_same_press_does_not(play):
    launch = play(nproc=2)
    for when_s in (2.0, 2.05, 2.0 + LATER_S):
        launch.signal(when_s, SIGINT)
    result = launch.run()
    assert launch.sent() == alike((0, 1), [(SIGINT, 2.0), (SIGKILL, 2.0 + LATER_S)])
    assert told(result) == (SIGINT, None, False, 0)


def test_a_third_signal_does_not_give_those_who_do_not_die_more_time(play):
    launch = play(nproc=1)
    launch.at(1.0, lambda: launch.workers[0].on.update({SIGKILL: lambda worker: None}))
    launch.signal(2.0, SIGTERM)
    launch.signal(4.5, SIGTERM)
    with pytest.raises(LaunchError, match="killed"):
        launch.run()
    assert launch.now == 4.5 + KILL_S


def test_a_signal_while_a_failed_launch_ends_stops_it_and_gives_no_further_time(play):
    launch = play(nproc=2, max_restarts=3)
    launch.at(1.0, lambda: launch.workers[1].on.update({SIGINT: lambda worker: None}))
    launch.rank(0, 2.0, "fails")
    launch.signal(2.1, SIGINT)
    result = launch.run()
    assert launch.workers[1].got == [(SIGINT, 2.0), (SIGKILL, 2.3)]
    assert told(result) == (SIGINT, None, False, 0)


def test_a_signal_before_the_server_is_ready_ends_it_quietly(play):
    launch = play(nproc=2)
    launch.server.is_ready = False
    launch.asked = lambda worker: None
    launch.signal(0.5, SIGINT)
    result = launch.run()
    assert told(result) == (SIGINT, None, False, 0)
    assert launch.server.is_closed
    assert len(launch.swept) == 1


def test_a_server_that_got_the_signal_too_before_it_was_ready_is_no_error(play):
    launch = play(nproc=2)
    launch.server.is_ready = False
    launch.asked = lambda worker: None
    launch.at(0.5, lambda: (launch.interrupts.tell(SIGINT), launch.server.says(died=True)))
    assert told(launch.run()) == (SIGINT, None, False, 0)


@pytest.mark.parametrize(("is_ready", "is_asked"), [(False, False), (True, True)])
def test_a_server_that_dies_for_another_reason_than_the_signal_is_an_error(play, is_ready, is_asked):
    launch = play(nproc=2)
    launch.server.is_ready = is_ready
    launch.asked = lambda worker: is_ready and worker.forked()
    if is_asked:
        launch.signal(0.3, SIGINT)
    launch.at(0.5, lambda: launch.server.says(died=True))
    with pytest.raises(LaunchError, match="fork server"):
        launch.run()


def test_all_get_the_signal_once_and_the_status_is_the_runs(saving):
    launch = saving(3)
    for rank, when_s in enumerate((3.0, 3.5, 4.0)):
        launch.rank(rank, when_s, "saves", 75)
    result = launch.run()
    assert launch.sent() == alike((0, 1, 2), [(SIGTERM, 2.0)])
    assert told(result) == (SIGTERM, 75, False, 0)
    assert launch.now == 4.0
    assert [succeeded for *_, succeeded in launch.swept] == [False]


@pytest.mark.parametrize("timeout_s", [TIMEOUT_S, 5.0])
def test_a_save_has_the_runs_timeout_but_never_less_than_a_file_system_needs(saving, timeout_s):
    launch = saving(timeout_s=timeout_s)
    result = launch.run()
    killed_s = 2.0 + max(timeout_s, SAVING_GRACE_S)
    assert launch.sent() == alike((0, 1), [(SIGTERM, 2.0), (SIGKILL, killed_s)])
    assert told(result) == (SIGTERM, None, True, 0)


@pytest.mark.parametrize(("saved_s", "killed_s"), [(10.0, 10.0 + SAVING_GRACE_S), (190.0, 2.0 + TIMEOUT_S)])
def test_once_one_has_saved_the_others_get_a_moment_within_the_time_of_all(saving, saved_s, killed_s):
    launch = saving(3)
    launch.rank(1, saved_s, "saves", 75)
    result = launch.run()
    assert launch.sent(1) == alike((0, 2), [(SIGTERM, 2.0), (SIGKILL, killed_s)])
    assert told(result) == (SIGTERM, 75, True, 0)


def test_one_who_has_saved_and_is_killed_at_its_end_has_saved(saving):
    launch = saving()
    for rank in (0, 1):
        launch.at(3.0, lambda rank=rank: launch.workers[rank].sends(stopped_with=75))
    result = launch.run()
    # All are only ending, for which they get less time.
    assert launch.sent() == alike((0, 1), [(SIGTERM, 2.0), (SIGKILL, 3.0 + SAVING_GRACE_S)])
    assert told(result) == (SIGTERM, 75, False, 0)


def test_the_second_signal_kills_also_those_that_save(saving):
    launch = saving()
    launch.signal(2.0 + LATER_S, SIGTERM)
    result = launch.run()
    assert launch.sent() == alike((0, 1), [(SIGTERM, 2.0), (SIGKILL, 2.0 + LATER_S)])
    assert told(result) == (SIGTERM, None, True, 0)


def test_a_run_that_comes_to_its_end_before_the_save_has_finished(saving):
    launch = saving()
    for rank in (0, 1):
        launch.rank(rank, 2.5, "finishes")
        launch.rank(rank, 3.0, "exits", 0)
    assert told(launch.run()) == (None, None, False, 0)


def test_ranks_that_are_over_are_not_sent_the_signal_and_the_others_save(saving):
    launch = saving()
    launch.rank(0, 1.5, "finishes")
    launch.rank(0, 4.0, "exits")
    launch.rank(1, 5.0, "saves")
    result = launch.run()
    assert launch.sent() == {0: [], 1: [(SIGTERM, 2.0)]}
    assert told(result) == (SIGTERM, 75, False, 0)


def test_a_rank_that_is_over_does_not_shorten_the_time_in_which_the_others_save(saving):
    launch = saving()
    launch.rank(0, 3.0, "finishes")
    launch.rank(1, 100.0, "saves")
    launch.rank(0, 101.0, "exits")
    result = launch.run()
    assert launch.sent() == alike((0, 1), [(SIGTERM, 2.0)])
    assert told(result) == (SIGTERM, 75, False, 0)


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_a_rank_that_ctrl_c_interrupts_although_the_run_is_saved_ends_it_and_has_not_failed(play, number):
    launch = play(nproc=2)
    launch.each(1.0, "watches", SIGINT, SIGTERM)
    launch.signal(2.0, number)
    launch.rank(1, 3.0, "reports", kind="KeyboardInterrupt")
    result = launch.run()
    assert launch.workers[0].got == [(number, 2.0), (SIGINT, 3.0), (SIGKILL, 3.0 + GRACE_S)]
    assert told(result) == (number, None, True, 0 if number == SIGINT else 1)


def test_if_all_are_over_the_signal_only_limits_how_long_their_exit_may_take(saving):
    launch = saving()
    launch.each(1.5, "finishes")
    result = launch.run()
    assert launch.sent() == alike((0, 1), [(SIGKILL, 2.0 + SAVING_GRACE_S)])
    assert result.failures == ()
    assert (result.stopped_with, result.was_cut_short) == (None, False)


def test_a_failure_while_the_run_is_saved_ends_it_and_is_reported_with_the_signal(saving):
    launch = saving(3, max_restarts=2)  # none follows a signal, so the others get the time of an end
    launch.rank(1, 3.0, "fails")
    launch.rank(0, 4.0, "exits", 75)
    result = launch.run()
    assert launch.sent(1) == {
        0: [(SIGTERM, 2.0), (SIGINT, 3.0)],
        2: [(SIGTERM, 2.0), (SIGINT, 3.0), (SIGKILL, 3.0 + GRACE_S)],
    }
    assert result.stopped_by == SIGTERM
    assert result.failures[0].rank == 1
    assert result.stopped_with is None


def test_a_failure_that_follows_from_the_second_signal_is_not_reported(saving):
    launch = saving()
    launch.at(1.5, lambda: launch.workers[1].on.update({SIGKILL: lambda worker: None}))
    launch.signal(2.0 + LATER_S, SIGTERM)
    launch.rank(1, 5.0, "fails")
    assert told(launch.run())[::3] == (SIGTERM, 0)


@pytest.mark.parametrize("what", ["a handler removed", "one forked late", "no handler yet", "no save any more"])
def test_if_one_rank_would_not_save_the_run_all_are_interrupted(saving, what):
    launch = saving(3)
    if what == "a handler removed":
        launch.at(1.5, lambda: launch.workers[1].catches.clear())
    elif what == "no handler yet":
        launch.at(1.5, lambda: launch.workers[1].sends(watches=[]))
        launch.at(1.5, lambda: launch.workers[1].catches.clear())
    elif what == "no save any more":
        launch.interrupts.may_save = False
    else:
        launch.asked = lambda worker: worker.rank < 2 and worker.forked()
        launch.drop(1.0)
        for rank in (0, 1):
            launch.rank(rank, 1.0, "watches", SIGTERM)
        launch.rank(2, 3.0, "forked")
    result = launch.run()
    asked = {rank: got[0] for rank, got in launch.sent().items()}
    assert asked == {0: (SIGINT, 2.0), 1: (SIGINT, 2.0), 2: (SIGINT, 3.0 if what == "one forked late" else 2.0)}
    assert told(result) == (SIGTERM, None, False, 0)


def test_an_echo_is_not_given_the_time_of_a_save(saving):
    launch = saving(3)
    launch.rank(2, 1.9, "echoes")
    result = launch.run()
    assert launch.sent(2) == alike((0, 1), [(SIGTERM, 2.0), (SIGINT, 1.9 + ECHO_S), (SIGKILL, 1.9 + ECHO_S + GRACE_S)])
    assert [failure.rank for failure in result.failures] == [2]


def test_a_run_that_a_signal_to_a_rank_stopped_has_saved_and_the_rest_follows(play):
    launch = play(nproc=3)
    launch.rank(0, 5.0, "saves", 75)
    launch.rank(1, 6.0, "saves", 75)
    result = launch.run()
    assert launch.workers[2].got == [(SIGKILL, 5.0 + SAVING_GRACE_S)]
    assert told(result) == (None, 75, True, 0)
    assert [succeeded for *_, succeeded in launch.swept] == [False]


def test_a_status_other_than_that_of_the_save_is_a_failure(saving):
    launch = saving()
    launch.at(3.0, lambda: launch.workers[0].sends(stopped_with=75))
    launch.rank(0, 3.0, "exits", -11)
    launch.rank(1, 3.0, "saves", 75)
    result = launch.run()
    assert [failure.rank for failure in result.failures] == [0]
    assert result.stopped_with is None, "what failed was not saved"


def test_a_verdict_on_workers_that_were_killed_since_they_did_not_save_is_none(saving):
    launch = saving()
    killed_s = 2.0 + TIMEOUT_S
    launch.at(1.5, lambda: launch.workers[1].on.update({SIGKILL: lambda worker: None}))
    launch.at(killed_s + 1.0, lambda: launch.end(failures.from_deadlock(0, "0 waits for 1", "stuck")))
    launch.rank(1, killed_s + 2.0, "exits", -SIGKILL)
    assert told(launch.run()) == (SIGTERM, None, True, 0)


def test_what_the_workers_have_sent_by_then_counts_when_a_signal_comes(play):
    launch = play(nproc=2)

    def at_once():
        launch.interrupts.tell(SIGTERM)
        for worker in launch.workers.values():
            worker.watches(SIGTERM)

    launch.at(2.0, at_once)
    launch.each(3.0, "saves", 75)
    assert told(launch.run()) == (SIGTERM, 75, False, 0)
    assert launch.sent() == alike((0, 1), [(SIGTERM, 2.0)])
    assert not ending.is_marked(launch.spec.private_dir)


@pytest.mark.parametrize("is_failed", [False, True])
def test_an_end_that_could_not_be_saved_is_told_unless_a_rank_failed(play, is_failed):
    launch = play(nproc=2)
    launch.at(1.0, lambda: launch.workers[1].sends(is_unsaved=True))
    launch.rank(1, 2.0, "exits", 0)
    launch.rank(0, 2.0, *(("fails",) if is_failed else ("exits", 0)))
    assert launch.run().is_unsaved is not is_failed
