"""When a run is reported to make no progress, and what the report contains."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep._base.reports import LOADER, MISMATCH
from lockstep._base.reports import WAITING as WAITING_KIND
from lockstep._base.tracebacks.frames import OURS
from lockstep._tools.explain import own_calls
from lockstep._tools.explain.own_calls import describe_own, purpose_of
from lockstep._tools.explain.process import ProcessFacts
from lockstep._tools.explain.rank_reports import RankReport
from lockstep._tools.explain.stuck import BUSY_S, is_vague, limit_of_script_s, limit_s
from lockstep._tools.explain.stuck import who_waits as report_of
from lockstep._tools.explain.work import COMPUTES, READS_OR_WRITES

WAITING = [["/site-packages/torch/distributed/distributed_c10d.py", 10, "all_reduce"], ["/home/me/train.py", 20, "<module>"]]


def rank(number, stack, state="running", collective=None, since_s=30.0, **more):
    record = {
        "rank": number,
        "world_size": 4,
        "host": "node7",
        "pid": 100 + number,
        "time_s": 50.0,
        "since_s": since_s,
        "doing": {"step": 5, "in_step": True, "activity": "in the forward pass"},
        "stack": stack,
        "collective": collective,
        **more,
    }
    return RankReport(record, state, 0.0)


def who_waits(*args, **options):
    """The kind of the report, and the ranks that are waited for."""
    report = report_of(*args, **options)
    return report and (report.kind, report.ranks)


def test_the_missing_rank_is_named_with_what_it_does_and_where():
    report = report_of(
        [rank(0, WAITING), rank(1, WAITING), rank(2, [["/home/me/train.py", 7, "loss"]]), rank(3, WAITING)], "run"
    )
    assert (report.kind, report.ranks, report.seconds) == (WAITING_KIND, (2,), 20)
    assert report.places[2] == "/home/me/train.py:7 in loss"
    waits, missing, line, command = report.text.splitlines()
    assert "ranks 0, 1 and 3" in waits
    assert "rank 2" in waits
    assert re.fullmatch(r"  rank 2 on node7 \(pid 102\): .*step 5.* 20 s", missing)
    assert line == "    /home/me/train.py:7 in loss"
    assert "`lockstep stacks run`" in command


def test_a_rank_that_works_may_keep_the_others_waiting_for_longer_than_one_that_does_nothing():
    working = [["/home/me/train.py", 7, "evaluate"]]
    assert who_waits([rank(0, working, since_s=49.5), rank(1, WAITING)], "run") is None
    report = report_of([rank(0, working, since_s=49.5), rank(1, WAITING, since_s=50.0 - BUSY_S)], "run")
    assert (report.kind, report.ranks, report.seconds) == (WAITING_KIND, (0,), 120)


def test_ranks_that_wait_in_different_collectives_are_told_in_which():
    reduce, gather = {"text": "all_reduce number 7"}, {"text": "all_gather number 7"}
    report = report_of([rank(0, WAITING, collective=reduce), rank(1, WAITING, collective=gather), rank(2, WAITING)], "run")
    assert report.kind == MISMATCH
    assert {number: report.calls[number] for number in (0, 1)} == {0: "all_reduce number 7", 1: "all_gather number 7"}
    assert set(report.places.values()) == {"/home/me/train.py:20 in <module>"}
    line = report.text.splitlines()[1]
    assert line.startswith("  rank 0: all_reduce number 7")
    assert "/home/me/train.py:20" in line
    assert who_waits([rank(0, WAITING, collective=reduce), rank(1, WAITING, collective=reduce)], "run") is None


def test_ranks_that_wait_in_different_groups_are_told_in_which_and_so_does_each_of_them():
    def waits(number, group, line):
        collective = {"text": "all_reduce number 1", "number": 1, "group": group, "members": [0, 1]}
        return rank(number, [WAITING[0], ["/home/me/train.py", line, "average"]], collective=collective)

    both = [waits(0, "1", 20), waits(1, "2", 30)]
    report = report_of(both, "run")
    assert report.calls == {
        number: f"all_reduce number 1 of process group {number + 1} (ranks 0 and 1)" for number in (0, 1)
    }
    assert report.places == {0: "/home/me/train.py:20 in average", 1: "/home/me/train.py:30 in average"}
    assert all(report.calls[number] in both[number].describe() for number in (0, 1))


def test_a_collective_that_lockstep_has_called_itself_is_named_by_its_purpose_and_one_for_the_user_is_not():
    collective = {"text": "all_reduce number 1", "number": 1, "group": "0", "members": [0, 1]}
    method = [f"{OURS}_world/comm/collectives.py", 90, "all_reduce"]
    script = ["/home/me/train.py", 20, "<module>"]
    asked = rank(0, [WAITING[0], method, script], collective=collective)
    own = rank(0, [WAITING[0], method, [f"{OURS}_loop/loop.py", 90, "step"], script], collective=collective)
    assert asked.call == "all_reduce number 1"
    assert own.call == describe_own(purpose_of(f"{OURS}_loop/loop.py"), "all_reduce number 1")
    assert own.call in own.describe()


RECEIVING = [["/site-packages/torch/distributed/distributed_c10d.py", 10, "recv"], ["/home/me/train.py", 30, "fetch"]]


def test_which_exception_a_rank_is_handling_is_told_whether_it_waits_or_is_waited_for():
    collective = {"number": 1, "text": "all_reduce number 1", "group": "0"}
    waits = rank(0, WAITING, collective=collective)
    handled = "ValueError: no labels (train.py:5 in <module>)"
    missing = report_of([waits, rank(1, [["/home/me/train.py", 7, "load"]], handled=handled)])
    assert handled in missing.text.splitlines()[1]
    elsewhere = rank(1, WAITING, collective={**collective, "text": "barrier number 1"}, handled=handled)
    [line] = [line for line in report_of([waits, elsewhere]).text.splitlines() if handled in line]
    assert line.startswith("    rank 1 ")


def test_a_rank_that_receives_what_nobody_sends_is_told_from_those_in_a_collective():
    reduce = {"text": "all_reduce number 7"}
    waits = [rank(0, WAITING, collective=reduce), rank(1, RECEIVING), rank(2, WAITING, collective=reduce)]
    report = report_of(waits, "run")
    assert report.calls == {0: "all_reduce number 7", 1: "recv", 2: "all_reduce number 7"}
    assert report.places[1] == "/home/me/train.py:30 in fetch"
    assert "recv" in report.text.splitlines()[0]
    assert report.text.splitlines()[1:3] == [
        "  ranks 0 and 2: all_reduce number 7, at /home/me/train.py:20 in <module>",
        "  rank 1: recv, at /home/me/train.py:30 in fetch",
    ]
    working = [["/home/me/train.py", 7, "evaluate"]]
    assert who_waits([rank(0, working, since_s=49.5), rank(1, RECEIVING)], "run") is None, "rank 0 may yet send it"


def test_a_rank_that_waits_as_it_exits_is_said_to_have_ended_its_program():
    reduce, other = {"text": "all_reduce number 7"}, {"text": "all_reduce number 8"}
    report = report_of([rank(0, WAITING, collective=reduce), rank(1, WAITING[:1], collective=other)], "run")
    [line] = [line for line in report.text.splitlines() if line.startswith("  rank 1: all_reduce number 8, ")]
    assert "finished" in line
    assert 1 not in report.places


def test_each_place_of_lockstep_that_a_report_knows_exists():
    source = Path(own_calls.__file__).parents[2]
    for prefix in own_calls.PURPOSES:
        assert list(source.glob(f"{prefix}*")), prefix


@pytest.mark.parametrize("state", ["gone", "stopped"])
def test_one_that_is_gone_or_stopped_is_missing_wherever_it_was(state):
    report = report_of([rank(0, WAITING), rank(1, WAITING, state)], "run")
    assert (report.kind, report.ranks, report.cause) == (WAITING_KIND, (1,), state)


def test_nobody_is_alarmed_where_all_wait_or_the_missing_one_is_in_a_debugger():
    assert who_waits([rank(0, WAITING), rank(1, WAITING)], "run") is None
    debugged = [["/usr/lib/python3.11/bdb.py", 90, "dispatch_line"], ["/home/me/train.py", 7, "loss"]]
    assert who_waits([rank(0, WAITING), rank(1, debugged)], "run") is None


def test_it_is_said_after_10_seconds_or_5_steps_and_later_while_nobody_knows_how_long_a_step_takes():
    assert limit_s(0.1, 100) == 10
    assert limit_s(4.0, 100) == 20
    assert limit_s(0.1, 1) == 60
    assert limit_of_script_s({"doing": {"num_done": 25}}) == 10
    assert limit_of_script_s({"doing": {"num_done": 4}}) == 60


def test_one_of_which_work_was_seen_lately_is_at_work_at_whatever_line_for_two_minutes():
    works = rank(0, [["/home/me/train.py", 7, "save"]], worked_s=45.0, work=READS_OR_WRITES)
    assert who_waits([works, rank(1, WAITING)], "run") is None
    assert READS_OR_WRITES in works.describe()
    assert READS_OR_WRITES in report_of([works, rank(1, WAITING, since_s=50.0 - BUSY_S)], "run").text
    assert who_waits([rank(0, works.record["stack"], worked_s=35.0), rank(1, WAITING)], "run") is not None


def test_one_that_computes_in_c_code_with_the_interpreter_lock_is_at_work_and_one_that_sleeps_there_is_not():
    late = replace(rank(0, [["/home/me/train.py", 7, "parse"]], "late", cpu_s=3.0), late_s=20.0)
    computes, sleeps = (replace(late, facts=ProcessFacts("running", cpu_s=cpu_s)) for cpu_s in (13.0, 3.1))
    assert who_waits([computes, rank(1, WAITING)]) is None
    assert COMPUTES in computes.describe()
    assert who_waits([sleeps, rank(1, WAITING)]) == (WAITING_KIND, (0,))


def test_one_in_the_scripts_code_that_has_begun_a_collective_waits_unless_others_are_ahead():
    item = [["/home/me/train.py", 7, "loss"]]  # loss.item(), or work.wait(), has no frame

    def at(number):
        return {"text": f"all_reduce number {number}", "group": "0", "number": number}

    begun = {"0": 7}
    begins = rank(0, item, collective=at(7), begun=begun)
    assert who_waits([begins, rank(1, [["/home/me/train.py", 9, "load"]])]) == (WAITING_KIND, (1,))
    assert who_waits([begins, rank(1, WAITING, collective=at(8), begun={"0": 8})]) == (WAITING_KIND, (0,))


def test_when_the_run_is_over_for_it_the_one_that_was_waited_for_is_named_however_long_it_was():
    reports = [rank(0, WAITING), rank(1, [["/home/me/train.py", 7, "loss"]], since_s=49.0)]
    assert who_waits(reports) is None
    assert who_waits(reports, is_over=True) == (WAITING_KIND, (1,))


def test_the_first_collective_that_differs_is_named_though_all_wait_in_the_same_now():
    now = {"text": "all_reduce number 9 (shape [5] of float)"}
    mine = [[7, "all_reduce (shape [5] of float)", "0"], [8, "all_gather (shape [5] of float)", "0"]]
    other = [[7, "all_reduce (shape [1] of float)", "0"], [8, "all_gather (shape [2] of float)", "0"]]
    report = report_of([rank(0, WAITING, collective=now, recent=mine), rank(1, WAITING, collective=now, recent=other)])
    assert (report.kind, report.cause) == (MISMATCH, "size")
    assert report.calls == {0: "all_reduce (shape [5] of float)", 1: "all_reduce (shape [1] of float)"}
    assert "number 7" in report.text
    assert report_of([rank(0, WAITING, collective=now, recent=mine[1:]), rank(1, WAITING, recent=other[1:])]) is None


@pytest.mark.parametrize(
    ("facts", "holds_lock", "cause"),
    [(ProcessFacts("disk-sleep"), False, "disk"), (ProcessFacts("sleeping"), True, "holds_gil")],
)
def test_why_a_rank_does_not_answer_is_told_as_far_as_the_kernel_knows(facts, holds_lock, cause):
    late = replace(rank(1, [["/home/me/train.py", 7, "loss"]], "late"), late_s=9.0, facts=facts, holds_lock=holds_lock)
    report = report_of([rank(0, WAITING), late])
    assert (report.kind, report.ranks, report.cause) == (WAITING_KIND, (1,), cause)


def test_one_that_no_longer_reports_is_in_no_collective_that_it_was_last_seen_in():
    reduce, other = ({"number": number, "text": f"all_reduce number {number}", "group": "0"} for number in (8, 7))
    silent = replace(
        rank(1, WAITING, "late", collective=other), late_s=19.5, facts=ProcessFacts("sleeping"), holds_lock=True
    )
    report = report_of([rank(0, WAITING, collective=reduce), silent])
    assert (report.kind, report.ranks, report.cause) == (WAITING_KIND, (1,), "holds_gil")
    assert report.calls.keys() == report.places.keys() == {0}, "those of rank 1 are old"
    assert "all_reduce number 7" in report.text
    unproven = replace(silent, late_s=4.0, holds_lock=False)
    assert who_waits([rank(0, WAITING, collective=reduce), unproven]) is None, "it may just have had no processor"


def test_a_rank_that_does_not_answer_is_looked_at_again_until_its_line_is_known():
    late = replace(rank(1, [["/home/me/train.py", 7, "loss"]], "late"), late_s=19.5, facts=ProcessFacts("sleeping"))
    proven = replace(late, holds_lock=True)
    reports = [report_of([rank(0, WAITING), each]) for each in (late, proven, replace(proven, is_now=True))]
    assert [report.cause for report in reports] == ["silent", "holds_gil", "holds_gil"]
    assert [is_vague(report) for report in reports] == [True, True, False]


def test_the_threads_that_have_died_are_told_of_a_rank_that_is_waited_for_and_of_no_other():
    at, dead = [["/home/me/train.py", 7, "batch"]], {"thread": "work", "error": "KeyError: 'x' (train.py:3)", "time_s": 1.0}
    missing = [rank(1, at, still_s=20.0), rank(2, at, still_s=20.0, died=[dead])]
    report = report_of([rank(0, WAITING, died=[{**dead, "error": "OSError"}]), *missing])
    assert (report.kind, report.ranks) == (WAITING_KIND, (1, 2))
    after_rank_2 = report.text.partition("rank 2 on")[2].partition("rank 1 on")[0]
    assert "`work`" in after_rank_2
    assert report.text.count(dead["error"]) == after_rank_2.count(dead["error"]) == 1
    assert "OSError" not in report.text


def test_ranks_that_all_wait_for_their_own_loaders_are_reported_with_the_line():
    loading = [
        ["/site-packages/torch/utils/data/dataloader.py", 1300, "_try_get_data"],
        ["/home/me/train.py", 12, "<module>"],
    ]
    report = report_of([rank(number, loading, since_s=50.0 - BUSY_S) for number in range(2)])
    assert (report.kind, report.ranks, report.seconds) == (LOADER, (0, 1), 120)
    assert report.places == dict.fromkeys((0, 1), "/home/me/train.py:12 in <module>")
    assert "/home/me/train.py:12 in <module>" in report.text


def test_one_that_a_debugger_holds_is_nobodys_fault():
    late = replace(rank(1, [["/home/me/train.py", 7, "loss"]], "late"), late_s=9.0, facts=ProcessFacts("tracing-stop"))
    assert who_waits([rank(0, WAITING), late]) is None


def test_one_that_wakes_up_again_and_again_is_told_of_without_a_warning_until_two_minutes():
    polling = rank(0, [["/home/me/train.py", 7, "poll"]], wakes=20)
    report = report_of([polling, rank(1, WAITING)])
    assert (report.ranks, report.cause, report.is_warning) == ((0,), "polls", False)
    silent = rank(0, [["/home/me/train.py", 7, "poll"]], wakes=2)
    assert report_of([silent, rank(1, WAITING)]).is_warning
    assert report_of([polling, silent, rank(1, WAITING)]).is_warning, "one of them does nothing"
    late = rank(0, [["/home/me/train.py", 7, "poll"]], since_s=50.0 - BUSY_S, wakes=100)
    assert report_of([late, rank(1, WAITING, since_s=50.0 - BUSY_S)]).is_warning


ECHO = "Traceback (most recent call last):\nRuntimeError: Timed out waiting 50ms for recv operation to complete"


def test_a_rank_that_has_failed_by_a_timeout_waits_and_one_that_failed_by_itself_is_missing():
    def at(number):
        return {"text": f"all_reduce number {number}", "number": number, "group": "0"}

    group = [["/site-packages/torch/distributed/distributed_c10d.py", 10, "new_group"], ["/home/me/train.py", 9, "<module>"]]
    begins = rank(0, group)
    timed_out = [rank(number, WAITING, "failed", collective=at(7), error=ECHO) for number in (1, 2, 3)]
    report = report_of([begins, *timed_out])
    assert (report.kind, report.ranks) == (MISMATCH, (0,))
    failed = rank(1, WAITING, "failed", collective=at(7), error="Traceback (most recent call last):\nValueError: boom")
    report = report_of([rank(0, WAITING, collective=at(7)), failed])
    assert (report.kind, report.ranks, report.cause) == (WAITING_KIND, (1,), "failed")


def test_ranks_with_an_earlier_number_are_not_late_where_an_earlier_call_differs():
    def waits(number, at, recent):
        collective = {"text": f"all_reduce number {at}", "number": at, "group": "0"}
        backward = [["/site-packages/torch/autograd/graph.py", 5, "run"], ["/home/me/train.py", 5, "<module>"]]
        return rank(number, backward, collective=collective, begun={"0": at}, recent=recent)

    one, five = "all_reduce (shape [1] of float)", "all_reduce (shape [5] of float)"
    behind = [waits(number, 47, [[47, five, "0", "", ""]]) for number in (0, 1)]
    ahead = waits(2, 48, [[47, one, "0", "all_reduce", "train.py:7 in <module>"], [48, five, "0", "", ""]])
    report = report_of([*behind, ahead])
    assert (report.kind, report.ranks, report.cause) == (MISMATCH, (2,), "size")
    assert report.places[2] == "train.py:7 in <module>"
    alike = waits(2, 48, [[47, five, "0", "", ""], [48, five, "0", "", ""]])
    assert report_of([*behind, alike]).kind == WAITING_KIND
