"""Promises of rounds: rows in turn, and what is more than noise."""

import dataclasses
import json
from pathlib import Path

import pytest
from test_rows_run import Silent

from lockstep._events.format import FILE_NAME
from lockstep._events.measure.split import sentence
from lockstep._tools.compare import compare
from lockstep._tools.compare.advice import notes_on
from lockstep._tools.compare.comparison import RowRun
from lockstep._tools.compare.methods import parse_methods
from lockstep._tools.compare.table import sentence_of
from lockstep._tools.trials.study import Task
from lockstep._tools.trials.trial import Record

pytestmark = pytest.mark.timeout(60)

TWO = "single@python,single@python+bf16-mixed"


@pytest.fixture
def machine(make_comparison):
    return make_comparison(("single", 1, 1.0)).machine


@pytest.fixture
def make_plan(fake_script, machine):
    def make(then="journal()", rounds=2, **options):
        script = fake_script(then)
        return compare.plan(Task(script=script, **options), parse_methods(TWO), (2,), machine, rounds=rounds)

    return make


def test_rows_take_turns_and_every_second_round_goes_backwards():
    assert compare.turns(2, 3) == [(1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (3, 1)]


def test_a_row_that_failed_is_not_run_again(make_plan, tmp_path):
    planned = make_plan("if settings['precision'] == '32-true': raise ValueError\njournal()")
    done = compare.run(planned.begin(tmp_path / "out"), observer := Silent())
    assert [len(result.runs) for result in done.rows] == [1, 2]
    assert [word for word in observer.heard if word.startswith("[")] == [
        "[1/4] single@python ×1, round 1 of 2",
        "[2/4] single@python+bf16-mixed ×1, round 1 of 2",
        "[3/4] single@python+bf16-mixed ×1, round 2 of 2",
    ]
    assert done.rows[0].figures is None
    assert set(done.rows[1].measured) == {1, 2}


def test_what_the_newest_round_of_a_row_says_of_it(make_comparison):
    comparison = make_comparison(("single", 1, (1.0, 2.0)))
    (row,) = comparison.rows
    good, newer = row.runs
    bad, late, cut = (RowRun(status=status, reason="why", round=3) for status in ("failed", "timeout", "interrupted"))
    for runs, decides, measured, is_over in (
        ((good, newer), newer, 2, False),
        ((good, newer, bad), bad, 0, False),  # and what it measured before does not count
        ((good, late), late, 0, False),
        ((good, newer, cut), newer, 2, True),
        ((cut,), cut, 0, True),
    ):
        result = dataclasses.replace(row, runs=runs)
        assert (result.decisive_run, len(result.measured)) == (decides, measured)
        assert (result.figures is None) == (not measured)
        assert dataclasses.replace(comparison, rows=(result,)).is_interrupted == is_over


def test_losses_that_differ_between_any_rounds_of_a_row_are_told(make_comparison):
    comparison = make_comparison(("single", 1, (1.0, 2.0, 1.0)), ("ddp", 2, 1.0))
    assert not any("lockstep verify" in note for note in notes_on(comparison))
    (*runs, last) = comparison.rows[0].runs
    last = dataclasses.replace(last, figures=dataclasses.replace(last.figures, loss=0.75))
    rows = (dataclasses.replace(comparison.rows[0], runs=(*runs, last)), comparison.rows[1])
    (note,) = [note for note in notes_on(dataclasses.replace(comparison, rows=rows)) if "lockstep verify" in note]
    assert "single ×1." in note


@pytest.fixture
def compared(machine, start, epoch, tmp_path, monkeypatch):
    """``compared(method, fields)``: a row of two processes that is measured once, by a run that
    writes these fields of its start."""

    def run(method, **fields):
        def run_trial(trial, observer):
            trial.run_dir.mkdir(parents=True)
            events = [start(**fields), epoch()]
            (trial.run_dir / FILE_NAME).write_text("".join(json.dumps(event) + "\n" for event in events))
            return Record(status="ok", exit_status=0, run_dir=trial.name)

        monkeypatch.setattr(compare, "run_trial", run_trial)
        planned = compare.plan(Task(script=Path("a.py")), parse_methods(method), (2,), machine, rounds=1)
        return compare.run(planned.begin(tmp_path / "out"), Silent())

    return run


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_row_that_ran_on_another_number_of_processes_is_not_measured(compared, world_size):
    (row,) = compared("ddp", world_size=world_size).rows
    expected = ("ok", "") if world_size == 2 else ("failed", "world-size-differs")
    assert (row.status, row.decisive_run.code) == expected


def test_the_first_run_says_how_many_shards_the_script_has(compared):
    assert compared("ddp", world_size=2, shards=6).shards == 6
    assert compared("ddp", world_size=2).shards == 2


def sentences(comparison):
    return [sentence_of(comparison, result) for result in comparison.rows]


def test_a_difference_that_noise_explains_is_called_noise(make_comparison):
    single, slower, faster, other = sentences(
        make_comparison(
            ("single", 1, (2.0, 2.1, 1.9)),
            ("single@python", 1, (2.05, 1.95, 2.1)),
            ("single@torchrun", 1, (1.0, 1.02, 0.98)),
            ("ddp", 2, "no luck"),
        )
    )
    assert ", measured to ±" in single
    assert slower.startswith("no difference from single ×1 ")
    assert "0.79 to 1.22" in slower
    assert faster.startswith("2.00 times as fast as single ×1 (95 % interval 1.")
    assert other is None


def test_what_was_measured_once_is_not_called_noise_nor_anything_else(make_comparison):
    _, once = sentences(make_comparison(("single", 1, 2.0), ("ddp", 2, 1.0)))
    assert once.startswith("2.00 times as fast as single ×1")
    assert "once" in once


SPLIT = {"data": 0.1, "forward": 0.4, "backward": 0.4, "communication": 0.0, "waiting": 0.1}


def test_what_limits_a_row_is_said(make_comparison):
    waiting = {**SPLIT, "data": 1.0, "waiting": 0.0}
    comparison = make_comparison(("single", 1, 2.0), ("ddp", 2, 1.0), split=[SPLIT, waiting])
    assert sentences(comparison)[1].endswith(sentence(comparison.rows[1].figures.shares))


def test_a_loss_that_is_not_the_same_in_every_round_is_never_shown_as_nought(make_comparison):
    comparison = make_comparison(("single", 1, (2.0, 2.0)))
    (result,) = comparison.rows
    assert comparison.relation(result).loss_difference == 0.0
    other = dataclasses.replace(result.runs[1], figures=dataclasses.replace(result.runs[1].figures, loss=0.75))
    changed = dataclasses.replace(comparison, rows=(dataclasses.replace(result, runs=(result.runs[0], other)),))
    assert abs(changed.relation(changed.rows[0]).loss_difference) == 0.25
