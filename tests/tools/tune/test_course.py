"""Promises of what ``lockstep tune`` measures and concludes. What stands for the timed runs only
writes their result."""

import itertools
import json
import re
import types

import pytest
from torch.utils.data import DataLoader

from lockstep._base.reports import REPORTS
from lockstep._cli.main import main
from lockstep._tools.trials.trial import Record
from lockstep._tools.tune import command, timing
from lockstep._tools.tune.timing import Timing

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def tune(tmp_path, monkeypatch, capsys):
    """``tune(result)``: the exit status, the number of workers that is recommended or the code of
    the refusal, and those that were timed; ``result`` is called with the number of workers, and how
    often it was timed before."""

    def run(result):
        timed = []

        def run_trial(trial, observer):
            workers = trial.settings.get("workers")
            found = result(workers, timed.count(workers))
            timed.append(workers)
            if isinstance(found, str):
                return Record(status=found, exit_status=int(found == "failed"))
            step_s, wait_s = found
            file = trial.directory / "result.json"
            file.write_text(json.dumps({"step_s": step_s, "wait_s": wait_s, "workers": workers or 0}))
            return Record(status="ok")

        (tmp_path / "train.py").touch()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv(REPORTS, str(tmp_path / "reports"))
        monkeypatch.setattr(command, "run_trial", run_trial)
        with pytest.raises(SystemExit) as ended:
            main(["tune", "train.py"])
        found = re.search(r"lockstep run --workers (\d+) train\.py", capsys.readouterr().out)
        if (reports := tmp_path / "reports").exists():
            return ended.value.code, json.loads(reports.read_text().splitlines()[-1])["code"], timed
        return ended.value.code or 0, found and int(found[1]), timed

    return run


def faster(workers, number):
    """Steps of 8 workers wait no longer."""
    return 1.0 + 7.0 / (workers or 1) * (workers != 8), 7.0 / (workers or 1) * (workers != 8)


def test_a_number_that_is_faster_in_each_comparison_is_recommended(tune):
    status, workers, timed = tune(faster)
    assert (status, workers) == (0, 8)
    assert timed.count(8) == timed.count(0) + 1 == 2, "clear at once, so compared once more"


@pytest.mark.parametrize(("step_s", "num_again"), [(4.0, 1), (7.9, 2)])
def test_what_is_not_faster_again_is_chance(tune, step_s, num_again):
    """Also if it is so on average, or only in the second comparison."""

    def result(workers, number):
        is_faster = workers == 2 and number < num_again
        return (step_s if is_faster else 8.0, 7.0)

    status, workers, timed = tune(result)
    assert (status, workers) == (0, None)
    assert timed.count(0) < 3


def test_where_the_present_number_is_best_or_waits_for_nothing_nothing_is_compared_again(tune):
    status, workers, timed = tune(lambda workers, number: (8.0 + (workers or 0), 7.0))
    assert (status, workers, sorted(timed[1:])) == (0, None, [1, 2])
    assert tune(lambda workers, number: (8.0, 0.1)) == (0, None, [None])


@pytest.mark.parametrize(
    ("end", "status", "found"),
    [("interrupted", 130, None), ("failed", 1, "script-failed"), ("timeout", 1, "time-limit"), ("ok", 1, "not-joined")],
)
def test_a_run_that_cannot_be_measured_ends_the_command_with_the_reason(tune, end, status, found):
    for number in range(3):
        ends = itertools.chain([""] * number, itertools.repeat(end))
        found_status, why, timed = tune(lambda *run, ends=ends: next(ends) or faster(*run))
        assert (found_status, why, len(timed)) == (status, found, number + 1)


class Times:
    """A clock of steps: the time, and what is waited in a pass."""

    def __init__(self):
        self.now_s, self.so_far = 100.0, {"data": 0.0}

    def take(self, step_s, wait_s):
        self.now_s += step_s
        self.so_far["data"] += wait_s


@pytest.mark.parametrize("steps_per_pass", [1, 3, 1000])
@pytest.mark.parametrize(("workers", "num_slow"), [(0, 5), (2, 7)])  # a second; and what was fetched ahead
@pytest.mark.parametrize("with_list", [False, True])
def test_steps_are_timed_behind_those_that_settle_and_over_the_ends_of_passes(
    tmp_path, monkeypatch, steps_per_pass, workers, num_slow, with_list
):
    clock, result = Times(), tmp_path / "result.json"
    monkeypatch.setattr(timing, "perf_counter", lambda: clock.now_s)
    timed = Timing(clock, 2.0, result)
    timed.prepared_loader(types.SimpleNamespace()) if with_list else None
    timed.prepared_loader(DataLoader([0], num_workers=workers))
    for step in itertools.count(1):
        clock.take(*((0.25, 0.25) if step <= num_slow else (0.125, 0.0625)))
        timed.end_step(step, 1)
        if result.exists():
            break
        if step % steps_per_pass == 0:
            timed.end_pass(step, exhausted=True)
            clock.so_far["data"] = 0.0
    found = json.loads(result.read_text())
    assert found == {"step_s": 0.125, "wait_s": 0.0625, "workers": workers}
    assert step < 60
