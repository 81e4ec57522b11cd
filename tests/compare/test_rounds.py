"""Promises of rounds: rows in turn, a comparison that is interrupted is resumed, and only if it is the same."""

import dataclasses
import json
from pathlib import Path

import pytest
from test_rows_run import Silent

from lockstep.tools.compare import compare, unfinished
from lockstep.tools.compare.methods import parse_methods
from lockstep.tools.compare.results import read_results
from lockstep.tools.compare.schedule import seconds_left, turns_left
from lockstep.tools.compare.sentences import sentence_of
from lockstep.tools.trials.study import Task

pytestmark = pytest.mark.timeout(60)

TWO = "single@python,single@python+bf16-mixed"


@pytest.fixture
def machine(make_comparison):
    return make_comparison(("single", 1, 1.0)).machine


@pytest.fixture
def make_plan(fake_script, machine):
    def make(then="journal()", rounds=2, **options):
        script = fake_script(then)
        source = unfinished.digest_of(script)
        return compare.plan(Task(script=script, **options), parse_methods(TWO), (2,), machine, rounds=rounds, source=source)

    return make


def order_of(comparison):
    return [(turn.round, turn.index) for turn in turns_left(comparison)]


def test_rows_take_turns_and_every_second_round_goes_backwards(make_plan):
    planned = make_plan(rounds=3)
    assert order_of(planned) == [(1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (3, 1)]
    assert [turn.number for turn in turns_left(planned)] == [1, 2, 3, 4, 5, 6]


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
    assert read_results(tmp_path / "out") == done


def test_the_time_left_is_that_of_the_rows_that_are_left(make_comparison):
    comparison = make_comparison(("single", 1, 2.0), ("ddp", 2, 1.0))
    assert seconds_left(comparison) == 0.0
    assert seconds_left(dataclasses.replace(comparison, rounds=3)) == 4 * 9.0  # each took 9 s
    nothing = tuple(dataclasses.replace(result, runs=()) for result in comparison.rows)
    assert seconds_left(dataclasses.replace(comparison, rows=nothing)) is None


class Interrupting(Silent):
    """Presses Ctrl-C while the run with this number goes."""

    def __init__(self, number):
        def at_that_run(what, elapsed_s):
            if what.startswith(f"[{number}/") and (self.out / "runs").is_dir():
                raise KeyboardInterrupt

        super().__init__(at_that_run)


def interrupted(planned, out, number):
    observer = Interrupting(number)
    observer.out = out
    return compare.run(planned.begin(out), observer)


@pytest.mark.long
def test_an_interrupted_comparison_is_gone_on_with_and_nothing_is_measured_twice(make_plan, tmp_path):
    then = "import time; time.sleep(1 if Path('slow').exists() else 0)\njournal()"
    (tmp_path / "slow").touch()
    planned = make_plan(then.replace("'slow'", repr(str(tmp_path / "slow"))))
    stopped = interrupted(planned, tmp_path / "out", 3)
    assert stopped.is_interrupted
    assert [[run.status for run in result.runs] for result in stopped.rows] == [["ok"], ["ok", "interrupted"]]
    (tmp_path / "slow").unlink()
    resumed, why_not = unfinished.resumable(planned, tmp_path / "out")
    assert why_not == ""
    done = compare.run(resumed, observer := Silent())
    assert [word[:5] for word in observer.heard if word.startswith("[")] == ["[3/4]", "[4/4]"]
    assert not done.is_interrupted
    assert [set(result.measured) for result in done.rows] == [{1, 2}, {1, 2}]
    names = [run["run_dir"] for run in json.loads((tmp_path / "out" / "results.json").read_text())["rows"][1]["runs"]]
    assert len({*names}) == 3  # what the interrupted run has left is neither resumed nor deleted
    assert unfinished.resumable(planned, tmp_path / "out") == (None, "")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"args": ("--lr", "1")}, "arguments"),
        ({"seed": 3}, "seed"),
        ({"shards": 4}, "shards"),
        ({"rounds": 5}, "rounds"),
        ({"then": "journal(); print()"}, "script"),
    ],
)
def test_another_comparison_is_not_gone_on_with_and_what_differs_is_said(make_plan, tmp_path, changed, named):
    planned = make_plan()
    planned.begin(tmp_path / "out").noting()
    found, why_not = unfinished.resumable(make_plan(**changed), tmp_path / "out")
    assert found is None
    assert why_not.endswith(f"because these differ: {named}")


def test_a_comparison_that_still_runs_is_left_alone(make_plan, tmp_path):
    planned = make_plan()
    begun = planned.begin(tmp_path / "out").noting()
    with unfinished.held(begun.directory) as is_mine:
        assert is_mine
        found, why_not = unfinished.resumable(planned, tmp_path / "out")
        assert found is None
        assert "is still running" in why_not
    assert unfinished.resumable(planned, tmp_path / "out")[0].directory == begun.directory


@pytest.mark.parametrize("content", ["", "{", '{"settings": []}'])
def test_what_is_no_comparison_is_not_gone_on_with(make_plan, tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.json").write_text(content)
    assert unfinished.resumable(make_plan(), tmp_path / "out") == (None, "")


def test_no_script_has_no_digest():
    assert unfinished.digest_of(None) == unfinished.digest_of(Path("/nowhere.py")) == ""


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
    assert single.startswith("the others are compared with it, measured to ±")
    assert slower.startswith("no difference from single ×1 beyond noise (95 % interval 0.79 to 1.22 times as fast)")
    assert faster.startswith("2.00 times as fast as single ×1 (95 % interval 1.")
    assert other is None


def test_what_was_measured_once_is_not_called_noise_nor_anything_else(make_comparison):
    _, once = sentences(make_comparison(("single", 1, 2.0), ("ddp", 2, 1.0)))
    assert once == "2.00 times as fast as single ×1, measured once: --rounds 3 tells how much of that is noise"


SPLIT = {"data": 0.1, "forward": 0.4, "backward": 0.4, "communication": 0.0, "waiting": 0.1}


def test_what_limits_a_row_and_its_slowest_rank_are_said(make_comparison):
    waiting = {**SPLIT, "data": 1.0, "waiting": 0.0}
    comparison = make_comparison(("single", 1, 2.0), ("ddp", 2, 1.0), split=[SPLIT, waiting])
    said = sentences(comparison)[1]
    assert "; largest wait: the loader, " in said
    assert said.endswith("rank 1 is the slowest, 100 % behind the others")


def test_a_loss_that_is_not_the_same_in_every_round_is_never_shown_as_nought(make_comparison):
    comparison = make_comparison(("single", 1, (2.0, 2.0)))
    (result,) = comparison.rows
    assert comparison.relation(result).loss_difference == 0.0
    other = dataclasses.replace(result.runs[1], figures=dataclasses.replace(result.runs[1].figures, loss=0.75))
    changed = dataclasses.replace(comparison, rows=(dataclasses.replace(result, runs=(result.runs[0], other)),))
    assert abs(changed.relation(changed.rows[0]).loss_difference) == 0.25
