"""A planted fault counts as named by the fields of reports: rank and cause, in time, and nothing
wrong before."""

import importlib
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def judging(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("_judging")


@pytest.fixture
def fault(judging):
    """Makes one of rank 1 of three."""
    table = importlib.import_module("_faults")

    def make(kinds=("waiting",), **fields):
        return table.Fault("stuck", "lockstep", "load", 1, 3, kinds, **fields)

    return make


def report(kind="waiting", ranks=(1,), cause="", places=None, calls=None, after_s=11.0, text=""):
    """As it is read from the file, of a fault that shows at 100."""
    fields = {"kind": kind, "ranks": list(ranks), "cause": cause, "text": text, "time_s": 100 + after_s}
    places = {"1": "train.py:9 in load"} if places is None else places
    return {**fields, "places": places, "calls": calls or {}}


def how(judging, fault, *reports):
    return judging.judged(reports, fault, 100.0).how


def test_rank_and_cause_in_time_name_a_fault(judging, fault):
    assert how(judging, fault(place="load"), report()) == "named"
    assert how(judging, fault(cause="stopped"), report(cause="stopped", places={})) == "named"
    assert judging.judged([report()], fault(place="load"), 100.0).seconds == 11.0


def test_the_time_counts_from_when_the_fault_shows(judging, fault):
    assert how(judging, fault(place="load"), report(after_s=15.1)) == "late"
    assert how(judging, fault(place="load", limit_s=60.0), report(after_s=15.1)) == "named"


def test_the_rank_without_the_cause_is_half_of_it(judging, fault):
    assert how(judging, fault(place="save"), report()) == "half"
    assert how(judging, fault(cause="stopped"), report()) == "half"
    assert how(judging, fault(place="save"), report(), report(places={"1": "train.py:20 in save"})) == "named"


@pytest.mark.parametrize(
    "wrong",
    [report(ranks=(0,)), report(ranks=(0, 1)), report(kind="mismatch"), report(cause="holds_gil")],
    ids=["rank", "too many ranks", "kind", "cause"],
)
def test_a_wrong_rank_or_cause_counts_although_the_right_one_follows(judging, fault, wrong):
    right = report(cause="stopped")
    assert how(judging, fault(cause="stopped"), right) == "named"
    assert how(judging, fault(cause="stopped"), wrong, right) == "wrong"
    assert how(judging, fault(cause="stopped"), right, wrong) == "named"


def test_a_mismatch_must_say_what_the_culprit_and_another_rank_have_called(judging, fault):
    row = fault(kinds=("mismatch",), place="load")
    places = {"0": "train.py:20 in step", "1": "train.py:9 in load", "2": "train.py:20 in step"}
    assert how(judging, row, report("mismatch", (), places=places)) == "named"
    assert how(judging, row, report("mismatch", (0, 1, 2), places=places)) == "named"
    assert how(judging, row, report("mismatch", (), places=dict.fromkeys(places, "train.py:9 in load"))) == "half"
    same = dict.fromkeys(places, "train.py:9 in load")
    calls = {"0": "all_reduce of 4 float", "1": "all_reduce of 5 float"}
    assert how(judging, row, report("mismatch", (), places=same, calls=calls)) == "named"


def test_a_rank_that_fails_because_another_one_is_missing_is_no_answer_and_no_wrong_one(judging, fault):
    text = "RuntimeError: Timed out waiting 40000ms for recv operation to complete"
    echo = report("failed", (0,), "RuntimeError", places={}, text=text)
    assert how(judging, fault(place="load"), echo) == "silent"
    assert how(judging, fault(place="load"), echo, report()) == "named"
    assert how(judging, fault(place="load"), {**echo, "text": "RuntimeError: shapes differ"}, report()) == "wrong"


def test_the_text_of_an_error_of_all_ranks_must_say_which_one_differs(judging, fault):
    row = fault(kinds=("failed",), error="rank 1 as", fails_on_all=True)
    assert (
        how(judging, row, report("failed", (0,), "MismatchError", text="is not the same on rank 1 as on rank 0")) == "named"
    )
    assert how(judging, row, report("failed", (0,), "MismatchError", text="is not the same")) == "half"


def test_silence_is_no_answer(judging, fault):
    assert how(judging, fault()) == "silent"


def test_each_fault_of_the_table_can_be_planted(judging):
    texts = "".join(path.read_text() for path in (BENCHMARKS / "workers").rglob("*.py"))
    table = importlib.import_module("_faults").FAULTS
    healthy = set(importlib.import_module("false_alarms").CASES) - {"suspended", "stolen"}
    names = {row.name for row in table} | healthy
    assert {name for name in names if f"def {name}(" not in texts and f'"{name}"' not in texts} == set()
    for row in table:
        assert 0 <= row.rank < row.nproc
        for pattern in (row.cause, row.call, row.error, row.said):
            re.compile(pattern)
