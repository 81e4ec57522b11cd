"""When and how a launch ends after a failure, who is named for it, and what is left: on a clock
that jumps (``played``)."""

import functools
import itertools
from dataclasses import replace
from signal import SIGABRT, SIGINT, SIGKILL, SIGSEGV, SIGTERM
from types import SimpleNamespace

import pytest
from played import FIRST_PID, PlayedLaunch

from lockstep._base.errors import LaunchError
from lockstep._launch import ending, failures
from lockstep._launch.lingering import LINGERS_S
from lockstep._launch.stages import ECHO_S, KILL_S
from lockstep._launch.supervise import GRACE_S, RESTART_GRACE_S, SAVING_GRACE_S

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def play(tmp_path, monkeypatch):
    return functools.partial(PlayedLaunch, tmp_path, monkeypatch)


def ranks(result):
    return [failure.rank for failure in result.failures]


def test_a_launch_whose_ranks_all_end_well_is_left_alone(play):
    launch = play(nproc=3)
    for rank, when_s in enumerate((5.0, 1.0, 900.0)):
        launch.rank(rank, when_s, "finishes")
        launch.rank(rank, when_s, "exits")
    result = launch.run()
    assert (result.failures, result.stopped_by, result.stopped_with, result.was_cut_short) == ((), None, None, False)
    assert (result.is_unsaved, result.joined) == (False, None)
    assert launch.now == 900.0
    assert launch.sent() == {0: [], 1: [], 2: []}
    assert launch.swept == [({FIRST_PID, FIRST_PID + 1, FIRST_PID + 2}, launch.spec.private_dir, True)]
    assert launch.watcher.ended == [(1, 0), (0, 0), (2, 0)]
    assert launch.watcher.is_closed
    assert not launch.server.is_closed


@pytest.mark.parametrize(
    ("restarts", "more", "grace_s"),
    [
        ({}, {}, GRACE_S),
        ({"max_restarts": 1}, {}, RESTART_GRACE_S),
        ({"max_restarts": 1}, {"would_recur": True}, GRACE_S),
        ({"max_restarts": 1, "restart": 1}, {}, GRACE_S),
    ],
    ids=["no restart", "a restart", "would recur", "restarts used"],
)
def test_after_a_failure_the_others_are_interrupted_at_once_and_killed_after_their_time(play, restarts, more, grace_s):
    launch = play(nproc=3, **restarts)
    launch.rank(1, 10.0, "reports", **more)
    launch.rank(1, 10.2, "exits", 1)
    launch.at(10.1, lambda: launch.workers[2].on.update({SIGINT: None}))
    result = launch.run()
    assert launch.sent() == {
        0: [(SIGINT, 10.0), (SIGKILL, 10.0 + grace_s)],
        1: [],  # its exit handlers are not interrupted
        2: [(SIGINT, 10.0), (SIGKILL, 10.0 + grace_s)],
    }
    assert ranks(result) == [1]
    assert ending.is_marked(launch.spec.private_dir)
    assert not ending.is_stopped(launch.spec.private_dir)
    assert [succeeded for *_, succeeded in launch.swept] == [False]
    assert (result.joined, launch.watcher.num_joined) == (result.joined, 1)
    assert result.joined is not None


def test_ranks_that_end_when_they_are_interrupted_are_no_failures_and_nobody_waits(play):
    launch = play(nproc=5)
    statuses = {1: -SIGINT, 2: 128 + SIGINT, 3: 1, 4: 0}

    def obey():
        for rank, status in statuses.items():
            launch.workers[rank].on[SIGINT] = lambda worker, status=status: worker.exits(status)

    launch.at(1.0, obey)
    launch.rank(0, 2.0, "fails", 9, exit_status=9)
    result = launch.run()
    assert (ranks(result), launch.now) == ([0], 2.0)


@pytest.mark.parametrize("status", [7, -SIGSEGV, -SIGABRT])
def test_a_rank_that_crashes_while_it_ends_is_named_after_the_cause(play, status):
    launch = play(nproc=2)
    launch.at(1.0, lambda: launch.workers[1].on.update({SIGINT: lambda worker: launch.rank(1, 2.5, "exits", status)}))
    launch.rank(0, 2.0, "fails")
    result = launch.run()
    assert (ranks(result), launch.now) == ([0, 1], 2.5)


def test_one_who_does_not_die_is_given_up_and_named(play):
    launch = play(nproc=2)
    launch.at(0.5, lambda: launch.workers[1].on.update({SIGKILL: lambda worker: None}))
    launch.rank(0, 1.0, "fails")
    with pytest.raises(LaunchError, match=rf"\[{FIRST_PID + 1}\]"):
        launch.run()
    assert launch.now == 1.0 + GRACE_S + KILL_S
    assert launch.server.is_closed
    assert len(launch.swept) == 1
    assert launch.watcher.is_closed


def test_an_echo_waits_for_its_cause_and_nobody_is_interrupted_before(play):
    launch = play(nproc=4)
    launch.rank(2, 1.0, "echoes")
    launch.rank(3, 1.2, "echoes")
    launch.rank(0, 1.0 + ECHO_S - 0.1, "fails")
    result = launch.run()
    assert (ranks(result), [failure.is_consequence for failure in result.failures]) == ([0, 2, 3], [False, True, True])
    assert launch.workers[1].got[0] == (SIGINT, 1.0 + ECHO_S - 0.1)


def test_echoes_alone_end_the_launch_a_moment_after_the_first(play):
    launch = play(nproc=4)
    for rank, when_s in enumerate((1.0, 1.3, 1.4)):
        launch.rank(rank, when_s, "echoes")
    result = launch.run()
    assert ranks(result) == [0, 1, 2]
    assert launch.workers[3].got == [(SIGINT, 1.0 + ECHO_S), (SIGKILL, 1.0 + ECHO_S + GRACE_S)]


def test_who_is_named_first_does_not_depend_on_the_order_of_the_messages(play):
    # Rank 0 fails; the others lose it: one is aborted by its library, one echoes, one dies of
    # another thing later.
    kinds = {
        0: ("ValueError", {}),
        1: ("DistNetworkError", {"is_consequence": True}),
        2: ("SIGABRT", {}),
        3: ("KeyError", {"is_consequence": True, "then": ", then it waited"}),
    }
    for order in itertools.permutations(kinds):
        launch = play(nproc=4)
        for number, rank in enumerate(order):
            kind, more = kinds[rank]
            launch.rank(rank, 1.0 + 0.01 * number, "fails", kind=kind, **more)
        result = launch.run()
        first = next(rank for rank in order if rank in (0, 2))
        assert ranks(result)[0] == first, order
        assert ranks(result)[-1] == 1, order
        assert sorted(ranks(result)) == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["finishes", None], ids=["finished", "os._exit"])
def test_a_rank_that_exits_while_others_need_it_is_named_before_those_that_lost_it(play, how):
    launch = play(nproc=3)
    if how:
        launch.rank(1, 1.0, how)
    launch.rank(1, 1.0, "exits", 0)
    launch.rank(0, 2.0, "echoes")
    launch.rank(2, 2.0, "echoes")
    result = launch.run()
    assert ranks(result) == [1, 0, 2]
    assert result.failures[0].ended_early


def leave(launch, rank, when_s, how):
    """A rank exits successfully. If its exit handlers run for long, its program was over before."""
    if how != "os._exit":
        launch.rank(rank, when_s, "finishes")
    launch.rank(rank, when_s + 5.0 if how == "exit handlers" else when_s, "exits", 0)


@pytest.mark.parametrize("later", ["finished", "os._exit", "exit handlers"])
@pytest.mark.parametrize("sooner", ["finished", "os._exit", "exit handlers"])
def test_of_several_that_exit_while_others_need_them_the_first_is_named(play, sooner, later):
    for first, *others in itertools.permutations(range(4)):
        launch = play(nproc=4)
        leave(launch, others[0], 2.0, later)
        leave(launch, first, 1.0, sooner)
        for rank in others[1:]:
            launch.rank(rank, 3.0, "fails", is_consequence=True)
        named = launch.run().failures[0]
        assert (named.rank, named.ended_early) == (first, True)
        assert named.time_s == pytest.approx(launch.wall_s - launch.now + 1.0)


@pytest.mark.parametrize(
    ("when_s", "how", "more", "is_named"),
    [
        (2.9, "finished", {}, True),
        (3.1, "finished", {}, False),
        (3.1, "exit handlers", {}, False),
        (3.1, "os._exit", {}, True),  # that it came to its end is not known
        (2.9, "finished", {"then": ", then it waited"}, False),
        (2.9, "os._exit", {"then": ", then it waited"}, False),
        (2.9, "os._exit", {"is_consequence": False}, False),
    ],
)
def test_only_what_was_before_the_others_lost_it_can_be_their_cause(play, when_s, how, more, is_named):
    launch = play(nproc=3)
    leave(launch, 1, when_s, how)
    launch.rank(0, 3.0, "fails", **{"is_consequence": True, **more})
    launch.rank(2, 3.2, "fails", is_consequence=True)
    found = launch.run().failures
    assert found[0].ended_early is is_named
    assert [failure.rank for failure in found if not failure.ended_early] == [0, 2]
    assert [failure.rank for failure in found if failure.ended_early] == [1] * is_named


def test_a_rank_that_ended_well_is_not_blamed_for_the_failure_of_another(play):
    launch = play(nproc=2)
    launch.rank(0, 1.0, "finishes")
    launch.rank(0, 1.0, "exits", 0)
    launch.rank(1, 2.0, "fails")
    assert ranks(launch.run()) == [1]


@pytest.mark.parametrize(
    ("name", "args", "more", "remark"),
    [
        ("exits", (-SIGKILL,), {}, "of memory\n\nlast words of 1"),
        ("exits", (3,), {}, "of memory"),
        ("fails", (-SIGKILL,), {"exit_status": 137}, "of memory"),
        ("echoes", (), {}, ""),
    ],
)
def test_the_cause_is_named_and_of_a_killed_rank_what_it_did_last(play, name, args, more, remark):
    launch = play(nproc=2)
    launch.observed["with_cause"] = lambda failure: replace(failure, remark="of memory")
    launch.rank(1, 1.0, name, *args, **more)
    assert [failure.remark for failure in launch.run().failures] == [remark]


@pytest.mark.parametrize(
    ("more", "waited"),
    [
        ({"message": "Wait timeout", "is_consequence": True}, "[2] wait"),
        ({"message": "Connection closed by peer", "is_consequence": True}, ""),
        ({"kind": "SIGABRT"}, "[2] wait"),
        ({"message": "Wait timeout", "is_consequence": True, "then": ", then it waited"}, ""),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("with_cause", [False, True])
def test_of_whom_it_is_asked_for_whom_it_waited(play, more, waited, with_cause):
    launch = play(nproc=3)
    if with_cause:
        launch.rank(0, 1.0, "fails")
    launch.rank(2, 1.1, "fails", **more)
    found = {failure.rank: failure.waited for failure in launch.run().failures}
    assert found[2] == waited


@pytest.mark.parametrize("with_cause", [False, True])
def test_calls_that_differ_explain_lost_connections_and_no_other_failure(play, with_cause):
    launch = play(nproc=3)
    launch.observed["mismatch"] = lambda reported: f"{ranks(SimpleNamespace(failures=reported))} differ"
    launch.rank(1, 1.0, "echoes")
    launch.rank(0, 1.1, *(("fails",) if with_cause else ("echoes",)))
    assert [failure.waited for failure in launch.run().failures] == (["", ""] if with_cause else ["[1, 0] differ", ""])


def test_who_waits_for_whom_is_asked_when_a_rank_times_out_and_not_again_when_it_exits(play):
    launch = play(nproc=3)
    for rank, when_s in ((1, 1.0), (2, 1.2)):
        launch.rank(rank, when_s, "echoes", message="Wait timeout")
        launch.rank(rank, 3.0, "exits", 1)
    result = launch.run()
    assert [(failure.rank, failure.waited) for failure in result.failures] == [(1, "[1] wait"), (2, "[1, 2] wait")]


def test_if_the_first_rank_lost_another_what_a_later_one_that_timed_out_waited_for_is_told_first(play):
    launch = play(nproc=3)
    launch.rank(1, 1.0, "echoes", message="Connection closed by peer")
    launch.rank(2, 1.2, "echoes", message="Wait timeout")
    assert [(failure.rank, failure.waited) for failure in launch.run().failures] == [(1, "[1, 2] wait"), (2, "[1, 2] wait")]


@pytest.mark.parametrize(("late_s", "gets"), [(0.5, SIGINT), (GRACE_S + 0.5, SIGKILL)], ids=["ending", "killed"])
def test_a_worker_that_is_forked_while_the_launch_ends_ends_too(play, late_s, gets):
    launch = play(nproc=3)
    launch.asked = lambda worker: worker.rank < 2 and worker.forked()
    launch.rank(0, 1.0, "fails")
    launch.rank(2, 1.0 + late_s, "forked")
    assert ranks(launch.run()) == [0]
    assert launch.workers[2].got[0] == (gets, 1.0 + late_s)


def test_few_workers_are_requested_at_a_time_and_none_once_the_launch_ends(play):
    launch = play(nproc=9)
    launch.asked = lambda worker: None
    for rank in range(3):
        launch.rank(rank, 1.0 + rank, "forked")
    launch.rank(0, 3.5, "reports")
    for rank in range(3, 9):
        launch.at(3.6, lambda rank=rank: rank in launch.workers and launch.workers[rank].forked())
    result = launch.run()
    assert [when_s for _, when_s in launch.server.asked] == [0.0] * 4 + [1.0, 2.0, 3.0]
    assert [rank for rank, _ in launch.server.asked] == list(range(7))
    assert launch.num_handed_over == 1
    assert ranks(result)[0] == 0


def test_all_workers_are_requested_in_the_end(play):
    launch = play(nproc=9)
    launch.each(5.0, "exits")
    assert launch.run().failures == ()
    assert [rank for rank, _ in launch.server.asked] == list(range(9))
    assert launch.num_handed_over == 1


def test_a_worker_that_cannot_be_forked_is_named_and_ends_all(play):
    launch = play(nproc=2)
    launch.asked = lambda worker: (
        worker.forked() if worker.rank == 0 else launch.server.says(key=worker.key, error="no memory")
    )
    with pytest.raises(LaunchError, match=r"rank 1 of 2 .*no memory"):
        launch.run()
    assert launch.server.is_closed
    assert launch.swept == [({FIRST_PID}, launch.spec.private_dir, False)]


def test_the_death_of_the_server_is_the_end_and_all_that_were_forked_are_swept(play):
    launch = play(nproc=2)
    launch.at(3.0, lambda: launch.server.says(died=True))
    with pytest.raises(LaunchError, match="fork server"):
        launch.run()
    assert (launch.now, launch.server.is_closed) == (3.0, True)
    assert launch.swept == [({FIRST_PID, FIRST_PID + 1}, launch.spec.private_dir, False)]


def test_a_worker_that_was_only_just_forked_is_swept_too_when_the_server_dies(play):
    launch = play(nproc=2)
    launch.asked = lambda worker: None
    launch.at(3.0, lambda: (launch.server.says(died=True), launch.workers[1].forked()))
    with pytest.raises(LaunchError, match="fork server"):
        launch.run()
    assert launch.swept == [({FIRST_PID + 1}, launch.spec.private_dir, False)]


def test_a_verdict_of_an_observer_ends_the_launch_once_and_is_not_replaced_by_what_follows(play):
    launch = play(nproc=3)
    verdicts = [failures.from_deadlock(rank, "0 waits for 1", "stuck") for rank in (1, 2)]
    launch.at(2.0, lambda: [launch.end(verdict) for verdict in verdicts])
    launch.rank(1, 2.5, "echoes")
    launch.rank(1, 2.5, "exits", 1)
    launch.rank(2, 2.6, "exits", -SIGINT)
    result = launch.run()
    assert result.failures == (verdicts[0],)
    assert launch.sent() == {0: [(SIGINT, 2.0), (SIGKILL, 2.0 + GRACE_S)], 1: [(SIGINT, 2.0)], 2: [(SIGINT, 2.0)]}


@pytest.mark.parametrize(("name", "ends_s"), [("fails", 1.0), ("echoes", 1.0 + ECHO_S)])
def test_a_verdict_after_a_failure_changes_nothing(play, name, ends_s):
    launch = play(nproc=2)
    launch.rank(1, 1.0, name)
    launch.at(1.2, lambda: launch.end(failures.from_deadlock(0, "0 waits for 1", "stuck")))
    assert ranks(launch.run()) == [1]
    assert launch.workers[0].got[0] == (SIGINT, ends_s)


def test_a_failure_that_comes_after_the_news_of_the_exit_counts_whatever_the_status(play):
    launch = play(nproc=2)
    launch.at(1.0, lambda: (launch.workers[1].exits(0), launch.workers[1].reports()))
    assert ranks(launch.run()) == [1]


def test_a_rank_that_lingers_is_reported_once_and_not_while_the_launch_ends(play):
    launch = play(nproc=3)
    launch.rank(0, 1.0, "finishes")
    launch.rank(1, 2.0, "finishes")
    launch.rank(1, 3.0, "exits")
    launch.rank(0, 60.0, "exits")
    launch.rank(2, 60.0, "exits")
    launch.run()
    assert launch.watcher.lingered == [(0, 1.0 + LINGERS_S)]

    launch = play(nproc=2)
    launch.rank(0, 1.0, "finishes")
    launch.at(2.0, lambda: launch.workers[0].on.update({SIGTERM: None}))
    launch.signal(1.0 + LINGERS_S - 1.0, SIGINT)
    launch.run()
    assert launch.watcher.lingered == []


@pytest.mark.parametrize("handling", [(1,), (0, 1)])
def test_a_script_with_a_handler_of_its_own_gets_the_signal_itself_and_more_time(play, handling):
    launch = play(nproc=2)
    launch.at(1.0, lambda: [launch.workers[rank].catches.add(SIGTERM) for rank in handling])
    launch.signal(2.0, SIGTERM)
    result = launch.run()
    for rank in (0, 1):
        asked = SIGTERM if rank in handling else SIGINT
        assert launch.workers[rank].got == [(asked, 2.0), (SIGKILL, 2.0 + SAVING_GRACE_S)]
    assert (result.stopped_by, result.failures, result.was_cut_short) == (SIGTERM, (), False)


def test_a_rank_that_is_over_gets_nobody_more_time_by_its_handler(play):
    launch = play(nproc=2)
    launch.at(1.0, lambda: launch.workers[1].catches.add(SIGTERM))
    launch.rank(1, 1.0, "finishes")
    launch.signal(2.0, SIGTERM)
    launch.run()
    assert launch.workers[0].got == [(SIGINT, 2.0), (SIGKILL, 2.0 + GRACE_S)]
