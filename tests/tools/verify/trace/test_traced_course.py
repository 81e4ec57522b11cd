"""Promises of the course of a verification: which runs are made, and up to where they are compared,
of scripts that fail, are stopped, or do not do what they are asked. What stands for a run's
processes only writes a trace, made by hand."""

import dataclasses
import json
import types
from pathlib import Path

import pytest
from codes import raises
from made_traces import trace

from lockstep._base.errors import UsageError
from lockstep._tools.trials.machine import look
from lockstep._tools.trials.study import Task
from lockstep._tools.trials.trial import Record
from lockstep._tools.verify import verdict, verify

pytestmark = pytest.mark.timeout(20)


def usual(trial):
    """What every run does: it ends well."""
    return "ok"


class Script:
    """A script of four steps in an epoch, and two epochs.

    Args:
        does: for each launch what it does: ``ok``, or how it ends; and changes of its trace.
    """

    shards, chosen = 4, ("shards",)

    def __init__(self, does):
        self._does = does
        self.launches = []

    def run_trial(self, trial, observer):
        self.launches.append(trial)
        is_killed = trial.kill_when is not None
        until = trial.settings.get("trace_until") or 8
        ranks = trace(trial.num_processes, until, self.shards, replacement=True)
        for line in (line for lines in ranks for line in lines):
            line["pass"] = line["epoch"] = int(line.get("step", 0) > 4)
            if line["event"] == "start":
                line |= {"chosen": list(self.chosen), "level": "steps", "precision": "32-true", "device": "cpu"}
        if "-after-" in trial.name:  # it has resumed behind step 2
            ranks = [[line for line in lines if line.get("step", 9) > 2 and line["event"] != "initial"] for lines in ranks]
        status, *changes = found if isinstance(found := self._does(trial), tuple) else (found,)
        for change in changes:
            change(ranks)
        for rank, lines in enumerate(() if is_killed else ranks):
            file = trial.run_dir / "trace" / f"rank-{rank}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        exit_status = (
            None if status == "interrupted" or (status == "ok" and is_killed) else int(status not in ("ok", "finished"))
        )
        status = "ok" if status == "finished" else status
        return Record(status=status, exit_status=exit_status, reason=None if status == "ok" else "why", run_dir=trial.name)

    @property
    def names(self):
        """The names of all launches' directories, without numbers."""
        return [trial.name.partition("-x")[2].replace("-local", "") or trial.name for trial in self.launches]


@pytest.fixture
def verified(tmp_path, monkeypatch):
    """``verified(does)``: what is found of a ``Script``, and that."""

    def run(does, *, sizes=(1, 2, 3), resumes=False, with_one_device=False, **of_script):
        script = Script(does)
        vars(script).update(of_script)
        monkeypatch.setattr(verify, "run_trial", script.run_trial)
        task = Task(script=Path("train.py"))
        here = look(num_cores=1, num_gpus=0)
        planned = verify.plan(task, sizes, (None,), ("local",), here, resumes=resumes, with_one_device=with_one_device)
        return verify.run(planned.begin(tmp_path / "out"), types.SimpleNamespace(started=print, ended=print)), script

    return run


def on(num_processes, *does, among=("runs/",)):
    """Runs with so many processes do this."""
    return lambda trial: does if trial.num_processes == num_processes and trial.name.startswith(among) else "ok"


def until(step):
    """A change of the trace: what a run that fails behind this step leaves."""

    def cut(ranks):
        for lines in ranks:
            lines[:] = [line for line in lines if line.get("step", 0) <= step and line["event"] != "end"]

    return cut


def other_loss(step, only=None):
    def change(ranks):
        for rank, lines in enumerate(ranks):
            for line in lines:
                if line["event"] == "shard" and line["step"] == step and only is None:
                    line["losses"] = ["0x1p+9"]
                if line["event"] == "step" and line["step"] == step and rank == only:
                    line["weights"]["w"] = "another"

    return change


def test_settings_that_compute_the_same_pass_and_each_runs_once(verified):
    found, script = verified(usual)
    assert (found.verdict, script.names) == ("pass", ["1", "2", "3"])
    assert [result.summary.loss for result in found.results] == [0.25] * 3
    assert len(verdict.verdict(found)) == 1, "all is verified"
    assert [trial.settings["trace"] for trial in script.launches] == ["steps"] * 3
    assert not any("trace_until" in trial.settings for trial in script.launches)


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_a_setting_that_fails_is_compared_as_far_as_it_came_and_is_the_last(verified, status):
    found, script = verified(on(2, status, until(3)))
    assert (found.verdict, found.worst, script.names) == ("fail", None, ["1", "2"])
    assert [result.status for result in found.results] == ["ok", status, "not run"]
    said = verdict.verdict(found)
    assert [line.split()[:2] for line in said if not line.startswith(" ")] == [["FAIL", "2"]], (
        "and nothing of what never ran"
    )
    found, script = verified(on(2, status, other_loss(2), until(3)))
    assert (found.worst.setting.world_size, found.worst.difference.step, found.worst.difference.stage) == (2, 2, "loss")
    assert script.names == ["1", "2", "1", "2"], "both again, to find the cause"
    assert [trial.settings.get("trace_until") for trial in script.launches] == [None, None, 2, 2]


def test_ranks_that_differ_are_run_again_without_another_setting(verified):
    found, script = verified(on(3, "ok", other_loss(5, only=2), among=("runs/", "diagnosis/")))
    assert (found.worst.difference.among, script.names) == (("rank 0", "rank 2"), ["1", "2", "3", "3"])
    assert found.diagnosis.cause == "rank"


@pytest.mark.parametrize(
    ("again", "cause"),
    [
        (("ok", other_loss(2)), "unknown"),  # as before
        (("ok",), "chance"),
        (("failed", until(2)), "chance"),  # behind what matters
        (("failed", until(1)), "unknown"),  # before that
    ],
)
def test_an_experiment_that_computes_something_else_is_chance_and_one_that_fails_is_nothing(verified, again, cause):
    def does(trial):
        return "ok" if trial.num_processes == 1 else (("ok", other_loss(2)) if trial.name.startswith("runs/") else again)

    found, _ = verified(does, sizes=(1, 2))
    assert (found.verdict, found.diagnosis.cause) == ("fail", cause)


def test_what_is_stopped_runs_nothing_more_and_looks_for_no_cause(verified):
    found, script = verified(on(2, "interrupted", other_loss(1), until(2)))
    assert (found.verdict, script.names, found.diagnosis) == ("interrupted", ["1", "2"], None)
    found, script = verified(
        lambda trial: "interrupted" if trial.name.startswith("diagnosis") else on(2, "ok", other_loss(1))(trial)
    )
    assert (found.verdict, script.names, found.diagnosis) == ("fail", ["1", "2", "3", "1"], None)


def last_evaluated(change):
    """A change of the trace: of the evaluations behind the last step."""

    def evaluate(ranks):
        for lines in ranks:
            last = [line for line in lines if line["event"] == "evaluation"][-1]
            change(lines, last)

    return evaluate


def test_the_loss_is_that_of_the_last_evaluation_and_one_that_is_never_made_is_not_verified(verified):
    change = last_evaluated(lambda lines, last: last["values"].update(loss="0x1p+3"))
    found, _ = verified(lambda trial: ("ok", change))
    assert (found.verdict, [result.summary.loss for result in found.results]) == ("pass", [8.0] * 3)

    def drop(ranks):
        for lines in ranks:
            lines[:] = [line for line in lines if line["event"] != "evaluation"]

    found, _ = verified(lambda trial: ("ok", drop))
    assert (found.verdict, len(verdict.verdict(found))) == ("pass", 3)


FINDINGS = {
    name: types.SimpleNamespace(differs=name != "resumes", restarts_on_resume=name != "differs")
    for name in ("differs", "resumes", "both")
}


@pytest.mark.parametrize("is_resumed", [False, True])
def test_of_the_scripts_text_only_what_may_explain_a_setting_is_shown(verified, is_resumed):
    found, _ = verified(usual, sizes=(1, 2), resumes=True)
    found = dataclasses.replace(found, findings=tuple(FINDINGS.values()))
    names = "resumes both" if is_resumed else "differs both"
    assert found.findings_on(found.results[-1 if is_resumed else 1]) == tuple(map(FINDINGS.get, names.split()))


def as_alone(ranks):
    for lines in ranks:
        lines[0]["world_size"] = 1
    del ranks[1:]


def without_an_end(ranks):
    del ranks[-1][-1]


@pytest.mark.parametrize(("change", "code"), [(as_alone, "verify-world-size"), (without_an_end, "verify-incomplete-trace")])
def test_a_setting_that_does_not_do_what_it_is_asked_fails_and_the_first_is_refused(verified, change, code):
    found, _ = verified(on(2, "ok", change))
    assert (found.verdict, [result.status for result in found.results]) == ("fail", ["ok", "failed", "not run"])
    with raises(UsageError, code):
        verified(on(2, "ok", change), sizes=(2, 3))


@pytest.mark.parametrize("is_chosen", [False, True])
def test_the_first_run_says_how_many_shards_there_are_and_who_has_chosen_them(verified, is_chosen):
    found, script = verified(usual, shards=2, chosen=("shards",) if is_chosen else ())
    assert (found.shards, found.is_shards_chosen, script.names) == (2, is_chosen, ["1", "2"])
    assert [result.setting.number for result in found.results] == [1, 2]


ENDS = {
    "is resumed": ("ok", "ok", ["ok", "ok"], "pass"),
    "finishes before": ("finished", None, ["skipped", "skipped"], "pass"),
    "fails": ("failed", None, ["failed", "not run"], "fail"),
    "is stopped": ("interrupted", None, ["interrupted", "not run"], "interrupted"),
    "starts over": (
        "ok",
        ("ok", lambda ranks: ranks.__setitem__(slice(None), trace(len(ranks), 8, 4))),
        ["skipped"] * 2,
        "pass",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_is_killed_and_resumed_in_its_first_and_its_last_epoch(verified, end):
    killed, resumed, statuses, verdict = ENDS[end]

    def does(trial):
        return killed if trial.kill_when is not None else resumed if "-after-" in trial.name else "ok"

    found, script = verified(does, sizes=(1, 2), resumes=True)
    assert ([result.status for result in found.results[2:]], found.verdict) == (statuses, verdict)
    of_kills = [trial for trial in script.launches if "-after-" in trial.name]
    expected = [("2", 2, True), ("1", 2, False), ("1", 6, True), ("2", 6, False)]
    if resumed is None:
        expected = [one for one in expected if one[2]][: 2 if statuses[0] == "skipped" else 1]
    for trial, (number, step, is_killed) in zip(of_kills, expected, strict=True):
        instead = {"fresh": False, **({"checkpoint_every": step} if is_killed else {})}
        assert (str(trial.num_processes), trial.of_script.instead) == (number, instead)
        assert ("trace" in trial.settings, trial.of_script.is_held) == (not is_killed, is_killed)


def test_what_only_a_resumed_run_computes_is_a_value_that_is_in_no_checkpoint(verified):
    found, script = verified(
        lambda trial: ("ok", other_loss(7)) if "-after-" in trial.name and trial.kill_when is None else "ok",
        sizes=(1, 2),
        resumes=True,
        with_one_device=True,
    )
    assert (found.verdict, found.diagnosis.cause, found.worst.difference.step) == ("fail", "not saved", 7)
    assert script.names[-1] == "one-device/4-shards", "the two are no reason for each other"


@pytest.mark.parametrize(
    ("does", "status", "verdict"),
    [("ok", "skipped", "pass"), ("failed", "skipped", "pass"), ("interrupted", "interrupted", "interrupted")],
)
def test_one_device_is_compared_where_all_settings_compute_the_same(verified, does, status, verdict):
    found, script = verified(lambda trial: does if trial.name.startswith("one") else "ok", with_one_device=True)
    assert (found.one_device.status, found.verdict) == (status, verdict)
    last = script.launches[3:]
    assert [trial.of_script.instead["shards"] for trial in last] == ([1, 4] if does == "ok" else [1])
    assert [(trial.settings["trace"], trial.settings["trace_until"]) for trial in last] == [("gradient", 1)] * len(last)
    found, script = verified(on(2, "ok", other_loss(8)), with_one_device=True)
    assert (found.one_device, script.names[3:]) == (None, ["1", "2"])
