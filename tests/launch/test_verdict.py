"""What follows from the end of a round, for every way in which rounds end."""

from dataclasses import replace

import pytest

from lockstep._launch.elastic.places import Machine
from lockstep._launch.elastic.round import Report
from lockstep._launch.elastic.verdict import judge
from lockstep._launch.failures import Failure, headline

ONE, TWO = (
    Machine(host="one", address="a", first_rank=0, num_ranks=2, keeps_store=True),
    Machine(host="two", address="b", first_rank=2, num_ranks=1),
)


def failure(rank, kind="ValueError", *, time_s=0.0, host="two", **more):
    return Failure(rank=rank, host=host, time_s=time_s, kind=kind, message="boom", text=f"whole {kind}", **more)


def echo(rank, host="one", **more):
    return failure(rank, "DistNetworkError", host=host, is_consequence=True, **more)


def judged(reports, *, least=1, is_elastic=False, used=0, max_restarts=0):
    reports = dict(enumerate(reports))
    return judge(reports, (ONE, TWO), least=least, is_elastic=is_elastic, used=used, max_restarts=max_restarts)


FOLLOWED = Report()
FAILED = Report(is_first=True, failures=(failure(2, exit_status=7),))
HEADLINE = headline(failure(2), 3)


def test_the_first_failure_is_told_whole_once_and_in_a_line_by_the_others():
    found = judged([Report(is_first=True, failures=(echo(0), echo(1))), FAILED])
    assert not found.continues
    assert found.text.startswith(f"{HEADLINE}\n\nwhole ValueError\n\n")
    assert "  rank 0 on one" in found.text
    before, _, where = found.brief.partition(HEADLINE)
    assert before == ""
    assert " on one " in where
    assert (found.status, found.reporter) == (7, 0)


def test_of_two_causes_the_first_is_that_which_was_seen_first_whatever_the_clocks_say():
    late = Report(failures=(failure(0, "KeyError", time_s=1.0, host="one"),))
    early = Report(is_first=True, failures=(failure(2, "ValueError", time_s=9000.0),))
    assert judged([late, early]).text.startswith(HEADLINE)


def test_restarts_are_counted_and_end():
    found = judged([FOLLOWED, FAILED], used=1, max_restarts=2)
    assert (found.continues, found.counts) == (True, True)
    assert found.code == "restart"
    found = judged([FOLLOWED, FAILED], used=2, max_restarts=2)
    assert not found.continues
    assert found.code == "restarts-used"


def test_an_error_that_would_only_come_again_is_the_end():
    failed = Report(is_first=True, failures=(failure(2, "ConfigError", would_recur=True),))
    found = judged([FOLLOWED, failed], max_restarts=3)
    assert not found.continues
    assert found.code == "would-recur"


def test_where_nodes_come_and_go_a_lost_one_costs_no_restart():
    found = judged([Report(is_first=True, failures=(echo(0),))], is_elastic=True)
    assert (found.continues, found.counts, found.code) == (True, False, "node-lost")
    assert "two (rank 2)" in found.text


def test_where_they_do_not_a_lost_one_is_the_end():
    found = judged([Report(is_first=True, failures=(echo(0),))], max_restarts=1)
    assert not found.continues
    assert found.code == "node-lost"
    assert "two (rank 2)" in found.text


def test_a_failure_is_not_taken_for_a_loss_by_the_one_who_reports_it():
    found = judged([Report(is_first=True, failures=(failure(0, host="one"),))], is_elastic=True)
    assert not found.continues
    assert "rank 0 of 3 on one failed" in found.text
    assert "lost contact with two" in found.text


def test_only_echoes_with_all_nodes_there_are_a_failure():
    reports = [Report(is_first=True, failures=(echo(0),)), Report(failures=(echo(2, "two"),))]
    assert not judged(reports, is_elastic=True).continues
    assert judged(reports, is_elastic=True, max_restarts=1).counts


def test_a_node_that_comes_costs_no_restart():
    join = Report(joins=True, is_first=True)
    found = judged([join, Report(failures=(echo(2, "two"),))], is_elastic=True)
    assert (found.continues, found.counts, found.code) == (True, False, "node-joined")


@pytest.mark.parametrize(
    ("is_elastic", "stopped", "continues"), [(False, 0, False), (False, 1, False), (True, 0, False), (True, 1, True)]
)
def test_who_is_stopped_leaves_and_the_others_go_on_if_they_can(is_elastic, stopped, continues):
    reports = [FOLLOWED, FOLLOWED]
    reports[stopped] = Report(is_first=True, signal=15)
    found = judged(reports, is_elastic=is_elastic)
    assert (found.continues, found.counts, found.reporter) == (continues, False, 1 - stopped)
    assert found.code == ("node-left" if continues else "stopped")
    assert found.status == (0 if continues else 128 + 15)


def test_reports_travel_as_text():
    report = Report(failures=(failure(2), echo(1)), signal=2)
    assert Report.from_json(report.to_json()) == report


SAVED = Report(is_first=True, stopped_with=75)
LEAVES = Report(stopped_with=75, signal=15)


def test_a_run_that_has_saved_itself_ends_on_all_nodes_with_its_status_and_is_no_failure():
    for reports in ([SAVED, LEAVES], [SAVED, SAVED], [LEAVES, LEAVES]):
        found = judged(reports, max_restarts=3)
        assert (found.continues, found.stopped_with, found.status, found.code) == (False, 75, 75, "saved")
    unsaved = [replace(SAVED, stopped_with=74), replace(LEAVES, stopped_with=74)]
    for is_elastic in (False, True):
        for reports in (unsaved, [unsaved[0], LEAVES], [SAVED, unsaved[1]]):
            found = judged(reports, is_elastic=is_elastic)
            assert (found.continues, found.stopped_with) == (False, 74)


def test_where_nodes_come_and_go_those_that_were_not_told_go_on_if_they_are_enough():
    found = judged([SAVED, LEAVES], is_elastic=True)
    assert (found.continues, found.counts, found.reporter) == (True, False, 0)
    assert found.code == "node-left"
    assert not judged([SAVED, LEAVES], is_elastic=True, least=2).continues
    assert not judged([LEAVES, LEAVES], is_elastic=True).continues
    assert not judged([LEAVES, SAVED], is_elastic=True).continues  # node 0 keeps the store
    assert not judged([SAVED, SAVED], is_elastic=True).continues


def test_a_run_that_has_saved_itself_for_a_node_that_comes_meets_again():
    found = judged([replace(SAVED, joins=True), SAVED], is_elastic=True)
    assert (found.continues, found.counts) == (True, False)
    assert "a node joined" in found.text


def test_what_fails_while_the_run_is_saved_is_a_failure_and_starts_nothing_again():
    found = judged([replace(LEAVES, stopped_with=0), FAILED], max_restarts=3)
    assert (found.continues, found.stopped_with, found.status) == (False, None, 7)
