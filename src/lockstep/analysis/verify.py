"""Runs one script under several settings, compares what each computed, and looks for the cause where they differ."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path

from lockstep.analysis import runner, verdict
from lockstep.analysis.attempts import Attempt, Observer, attempt, write_results
from lockstep.analysis.diagnose import Experiment, Outcome, conclude, conclude_for_killed, investigate
from lockstep.analysis.differences import check, compare
from lockstep.analysis.machine import Machine
from lockstep.analysis.one_device import OneDevice, against_one_device
from lockstep.analysis.runs import TracedRun, read_run
from lockstep.analysis.settings import Setting
from lockstep.analysis.verification import Plan, SettingResult, Verification, summary_of
from lockstep.errors import UsageError
from lockstep.measure.events import read_events
from lockstep.measure.trace import read_evidence

_LAUNCHERS = {"local": "lockstep"}
# How ``RunConfig`` says that a setting of ours is not the script's.
_FIXED_SHARDS = re.compile(r"shards is (\d+) in the script's join\(\)")
_FIXED_INTERVAL = re.compile(r"checkpoint_every is .* in the script's join\(\)")


def verify(plan: Plan, *, directory: Path, machine: Machine, observer: Observer) -> Verification:
    """Run every setting, compare, and look for the cause of the first difference.

    A setting that fails by itself is the last. ``results.json`` is written anew after each. A KeyboardInterrupt ends the run
    and the verification.

    Raises:
        UsageError: the first setting's run shows that there is nothing to verify in this script.
    """
    return _Verifier(plan, directory, observer).verify(machine)


class _Verifier:
    def __init__(self, plan: Plan, directory: Path, observer: Observer) -> None:
        self._plan = plan
        self._directory = directory
        self._observer = observer

    def verify(self, machine: Machine) -> Verification:
        plan = self._plan
        results = tuple(SettingResult(setting=setting, reason="stopped before") for setting in plan.settings)
        verification = Verification(directory=self._directory, plan=plan, machine=machine, results=results)
        reference: TracedRun | None = None
        total = len(plan.settings) + plan.with_one_device
        for index, setting in enumerate(plan.settings):
            self._observer.started(f"[{setting.number}/{total}] {setting.label}")
            result, run = self._run_setting(setting)
            fixed = _FIXED_SHARDS.search(result.reason or "")
            if fixed and index == 0 and not plan.shards_are_asked_for:
                self._observer.ended(f"the script cuts batches into {fixed[1]} shards itself: so do all settings")
                plan = self._plan = dataclasses.replace(plan, shards=int(fixed[1]))
                verification = dataclasses.replace(verification, plan=plan)
                self._observer.started(f"[{setting.number}/{total}] {setting.label}")
                result, run = self._run_setting(setting)
            if run is not None:
                # One that failed is compared as far as it came: what it computed before may tell why.
                until = None if result.status == "ok" else max(run.steps)
                found = check(run) or (None if reference is None else compare(reference, run, until=until))
                reference = reference or run
                result = dataclasses.replace(result, difference=found)
            results = (*results[:index], result, *results[index + 1 :])
            verification = self._note(dataclasses.replace(verification, results=results))
            self._observer.ended(verdict.outcome(verification, result))
            if result.is_bad:
                break
        else:
            if plan.with_one_device:
                self._observer.started(f"[{total}/{total}] {plan.shards} shards against one device")
                verification = self._note(dataclasses.replace(verification, one_device=self._compare_with_one_device()))
                self._observer.ended(verdict.outcome_of_one_device(verification))
        if verification.worst is not None and verification.verdict != "interrupted":
            verification = self._note(self._diagnose(verification))
        return verification

    def _note(self, verification: Verification) -> Verification:
        write_results(self._directory, verification.as_json())
        return verification

    # Runs

    def _run(
        self,
        setting: Setting,
        run_dir: Path,
        settings: Mapping[str, object],
        *,
        variables: Mapping[str, str] | None = None,
        is_killed: bool = False,
    ) -> Attempt:
        """Run the script as a user does: only fields of RunConfig are given, and of the environment nothing is changed."""
        plan = self._plan
        given = {"threads": plan.threads, "seed": plan.seed, "workers": setting.workers}
        start = runner.start_under(
            _LAUNCHERS.get(setting.launcher, setting.launcher),
            num_processes=setting.world_size,
            settings={
                "shards": plan.shards,
                "run_dir": str(run_dir.resolve()),
                **{name: value for name, value in given.items() if value is not None},
                **settings,
            },
            program=plan.program,
            variables=variables,
        )
        return attempt(
            plan,
            start,
            run_dir=run_dir,
            log=run_dir.with_name(f"{run_dir.name}{'-killed' if is_killed else ''}.log"),
            directory=self._directory,
            observer=self._observer,
            kill_when=(lambda: _has_checkpoint(run_dir)) if is_killed else None,
        )

    def _run_setting(self, setting: Setting) -> tuple[SettingResult, TracedRun | None]:
        run_dir = self._directory / "runs" / setting.slug
        if setting.killed_at is not None:
            before = dataclasses.replace(setting, world_size=setting.killed_at, killed_at=None)
            killed = self._run(before, run_dir, {"checkpoint_every": 1}, is_killed=True)
            if _FIXED_INTERVAL.search(killed.reason or ""):
                killed = self._run(before, run_dir, {}, is_killed=True)
            result = SettingResult(setting=setting, **vars(killed))
            if killed.status == "ok" and killed.exit_status is not None:
                return _skip(result, "the training was over before it could be killed: give it more steps"), None
            if killed.status != "ok":
                return result, None
        result = SettingResult(setting=setting, **vars(self._run(setting, run_dir, {"trace": "steps"})))
        if result.status != "ok":
            return result, _what_is_there(run_dir)
        try:
            run = read_run(run_dir)
            if run.start["world_size"] != setting.world_size:
                raise UsageError(f"the script ran as {run.start['world_size']} processes, not as {setting.world_size}")
            if not run.is_complete:
                raise UsageError("the trace has no end: did a process leave without an error?")
        except UsageError as error:
            if setting is self._plan.settings[0]:  # what the first run lacks, all lack
                raise
            return dataclasses.replace(result, status="failed", reason=str(error)), None
        if setting.killed_at is not None and min(run.steps) == 1:
            return _skip(result, "it was killed before its first checkpoint was whole: give it more steps"), None
        return dataclasses.replace(result, summary=summary_of(run)), run

    def _compare_with_one_device(self) -> OneDevice:
        shards, setting = self._plan.shards, Setting(number=0, world_size=1)
        runs = []
        for number in (1, shards):
            run_dir = self._directory / "one-device" / f"{number}-shards"
            done = self._run(setting, run_dir, {"shards": number, "trace": "gradient", "trace_until": 1})
            if done.status != "ok":
                status = "interrupted" if done.status == "interrupted" else "skipped"
                is_fixed = _FIXED_SHARDS.search(done.reason or "")
                reason = "the script sets shards itself, and one device has one" if is_fixed else done.reason
                return OneDevice(status=status, shards=shards, reason=reason)
            try:
                runs.append(read_run(run_dir))
            except UsageError as error:
                return OneDevice(status="skipped", shards=shards, reason=str(error))
        return against_one_device(*runs)

    # The cause

    def _diagnose(self, verification: Verification) -> Verification:
        worst = verification.worst
        assert worst is not None
        assert worst.difference is not None
        done: list[str] = []

        def laboratory(experiment: Experiment) -> Outcome | None:
            what = f"{experiment.purpose} ({experiment.setting.label})"
            done.append(what)
            self._observer.started(f"looking for the cause: {what}")
            run_dir = self._directory / "diagnosis" / f"{len(done)}-{experiment.level}-{experiment.setting.slug}"
            trace: dict[str, object] = {"trace": experiment.level}
            if experiment.until is not None:
                trace["trace_until"] = experiment.until
            variables = {} if experiment.hash_seed is None else {"PYTHONHASHSEED": str(experiment.hash_seed)}
            tried = self._run(experiment.setting, run_dir, trace, variables=variables)
            if tried.status == "interrupted":
                raise KeyboardInterrupt
            run = _what_is_there(run_dir)
            # That it failed after the last step that matters is no matter.
            if run is None or (tried.status != "ok" and max(run.steps) < (experiment.until or math.inf)):
                return None
            return Outcome(run=run, evidence=read_evidence(run_dir))

        first = worst if worst.difference.among is not None else verification.reference
        try:
            if worst.setting.killed_at is not None:
                until = worst.difference.step + 1  # what goes on into a step is seen when that begins
                watched = laboratory(
                    Experiment(purpose="watching what the script keeps", setting=first.setting, level="calls", until=until)
                )
                diagnosis = conclude_for_killed(() if watched is None else watched.evidence, directory=Path.cwd())
            else:
                pair = [(result.setting, read_run(self._directory / (result.run_dir or ""))) for result in (first, worst)]
                findings = investigate(worst.difference, pair[0], pair[1], laboratory)
                diagnosis = conclude(findings, directory=Path.cwd())
        except KeyboardInterrupt:  # what was measured is there; only the cause is not
            return dataclasses.replace(verification, experiments=tuple(done))
        return dataclasses.replace(verification, diagnosis=diagnosis, experiments=tuple(done))


def _skip(result: SettingResult, reason: str) -> SettingResult:
    return dataclasses.replace(result, status="skipped", reason=reason, error="")


def _what_is_there(run_dir: Path) -> TracedRun | None:
    """As much as was traced; None: not even a step."""
    try:
        return read_run(run_dir)
    except UsageError:
        return None


def _has_checkpoint(run_dir: Path) -> bool:
    try:
        return any(event["event"] == "checkpoint" and event["kind"] == "checkpoint" for event in read_events(run_dir))
    except FileNotFoundError:
        return False
