"""Runs one script under several settings, compares what each computed, and looks for the cause
where they differ."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep._base.errors import UsageError
from lockstep._events.format import FILE_NAME
from lockstep._events.history import Tail, has_new_checkpoint
from lockstep._tools.check.findings import Finding
from lockstep._tools.trials.machine import Machine
from lockstep._tools.trials.study import Task
from lockstep._tools.trials.trial import Observer, Record, run_trial
from lockstep._tools.verify import settings, verdict
from lockstep._tools.verify.diagnosis.causes import NOT_SAVED, conclude
from lockstep._tools.verify.diagnosis.experiments import investigate
from lockstep._tools.verify.diagnosis.one_device import OneDevice, against_one_device
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.trace.differences import first_difference, first_fault
from lockstep._tools.verify.trace.traced_run import TracedRun, read_run
from lockstep._tools.verify.verification import SettingResult, Verification, summary_of

_LAUNCHERS = {"local": "lockstep"}


def plan(
    task: Task,
    world_sizes: Sequence[int],
    workers: Sequence[int | None],
    launchers: Sequence[str] | None,
    machine: Machine,
    *,
    resumes: bool,
    with_one_device: bool,
    findings: Sequence[Finding] = (),
) -> Verification:
    """A verification before its first run. Pure. For the arguments see ``settings.expand``;
    ``findings``: of the script's text.

    Raises:
        ConfigError: there are fewer shards than processes in a setting, or there is only one
            setting.
    """
    shards = settings.default_shards(world_sizes) if task.shards is None else task.shards
    chosen = settings.expand(world_sizes, workers, launchers, task.shards, resumes=resumes)
    return Verification(
        task=task,
        machine=machine,
        shards=shards,
        threads=task.threads,
        results=tuple(SettingResult(setting=setting, reason="stopped before") for setting in chosen),
        with_one_device=with_one_device,
        findings=tuple(findings),
    )


def run(verification: Verification, observer: Observer) -> Verification:
    """Run every setting, compare, and look for the cause of the first difference.

    A setting that fails by itself is the last. ``results.json`` is rewritten after each. A
    KeyboardInterrupt ends the run and the verification.

    Raises:
        UsageError: the first setting's run shows that there is nothing to verify in this script.
    """
    verifier = _Verifier(verification, observer)
    verifier.run()
    return verifier.verification


class _Verifier:
    def __init__(self, verification: Verification, observer: Observer) -> None:
        self.verification = verification
        self._observer = observer
        self._reference: TracedRun | None = None
        """The run of the first setting, with which the others are compared."""

    def _note(self, **changes: object) -> None:
        self.verification = self.verification.noting(**changes)

    def run(self) -> None:
        index = 0
        while index < len(self.verification.results):
            setting = self.verification.results[index].setting
            self._observer.started(f"[{setting.number}/{self.verification.num_rows}] {setting.label}")
            result, run = self._run_setting(setting)
            if run is not None:
                # A run that failed is compared as far as all ranks came: the first difference may
                # be the reason for the failure.
                until = None if result.status == "ok" else run.last_of_all
                reference = self._reference
                difference = first_fault(run) or (
                    None if reference is None else first_difference(reference, run, until=until)
                )
                result = dataclasses.replace(result, difference=difference)
                if reference is None:
                    self._begin_with(run)
            results = self.verification.results
            self._note(results=(*results[:index], result, *results[index + 1 :]))
            self._observer.ended(verdict.outcome(self.verification, result))
            if result.is_bad:
                break
            index += 1
        else:
            if self.verification.compares_one_device and self.verification.differs_only_resumed:
                total = self.verification.num_rows
                self._observer.started(f"[{total}/{total}] {self.verification.shards} shards against one device")
                self._note(one_device=self._compare_with_one_device())
                self._observer.ended(verdict.outcome_of_one_device(self.verification))
        if self.verification.worst is not None and not self.verification.is_interrupted:
            self._diagnose(self.verification.worst)

    def _begin_with(self, run: TracedRun) -> None:
        """Take the first run as the one that the others are compared with, and its V as that of all
        others."""
        self._reference = run
        shards, (first, *others) = run.start["shards"], self.verification.results
        fitting = settings.within([result.setting for result in others], shards)
        planned = (first.setting, *(dataclasses.replace(setting, number=setting.number + 1) for setting in fitting))
        self.verification = dataclasses.replace(
            self.verification,
            shards=shards,
            is_shards_chosen="shards" in run.start["chosen"],
            results=tuple(SettingResult(setting=setting, reason="stopped before") for setting in planned),
        )

    # Trials

    def _try(
        self,
        setting: Setting,
        name: str,
        extra: Mapping[str, object],
        *,
        instead: Mapping[str, object] | None = None,
        is_killed: bool = False,
    ) -> Record:
        """Run the script as a user does: with fields of RunConfig only, in an unchanged
        environment."""
        trial = self.verification.trial(
            name,
            launcher=_LAUNCHERS.get(setting.launcher, setting.launcher),
            num_processes=setting.world_size,
            settings={"workers": setting.workers, **extra},
            instead=instead,
            is_held=is_killed,
        )
        if is_killed:
            event_log = Tail(trial.run_dir / FILE_NAME)
            trial = dataclasses.replace(trial, kill_when=functools.partial(has_new_checkpoint, event_log))
        return run_trial(trial, self._observer)

    def _run_setting(self, setting: Setting) -> tuple[SettingResult, TracedRun | None]:
        name = f"runs/{setting.slug}"
        run_dir = self.verification.directory / name
        instead: dict[str, object] = {}
        if setting.killed_at is not None:
            assert self._reference is not None
            step = settings.step_to_kill_after(self._reference, in_last_epoch=setting.in_last_epoch)
            if isinstance(step, str):
                return SettingResult(setting=setting, status="skipped", reason=step), None
            before = dataclasses.replace(setting, world_size=setting.killed_at, killed_at=None)
            instead = {"fresh": False}
            killed = self._try(before, name, {}, instead={**instead, "checkpoint_every": step}, is_killed=True)
            result = SettingResult(setting=setting, **vars(killed))
            if killed.status == "ok" and killed.exit_status is not None:
                return _skip(result, f"the run finished before its checkpoint after step {step} was complete"), None
            if killed.status != "ok":
                return result, None
        result = SettingResult(setting=setting, **vars(self._try(setting, name, {"trace": "steps"}, instead=instead)))
        if result.status != "ok":
            return result, _read_partial_run(run_dir)
        try:
            run = read_run(run_dir)
            if run.start["world_size"] != setting.world_size:
                raise UsageError(
                    f"the script ran as {run.start['world_size']} processes instead of {setting.world_size}",
                    code="verify-world-size",
                )
            if not run.is_complete:
                raise UsageError(
                    "the trace is incomplete: a process seems to have exited early, without an error",
                    code="verify-incomplete-trace",
                )
        except UsageError as error:
            if setting is self.verification.reference.setting:  # what the first run lacks, all lack
                raise
            return dataclasses.replace(result, status="failed", reason=str(error)), None
        if setting.killed_at is not None and min(run.steps) == 1:
            return _skip(result, "the run started over instead of resuming"), None
        return dataclasses.replace(result, summary=summary_of(run)), run

    def _compare_with_one_device(self) -> OneDevice:
        shards, setting = self.verification.shards, Setting(number=0, world_size=1)
        runs = []
        for number in (1, shards):
            name = f"one-device/{number}-shards"
            trace = {"trace": "gradient", "trace_until": 1}
            done = self._try(setting, name, trace, instead={"shards": number})
            if done.status != "ok":
                status = "interrupted" if done.status == "interrupted" else "skipped"
                return OneDevice(status=status, shards=shards, reason=done.reason)
            try:
                runs.append(read_run(self.verification.directory / name))
            except UsageError as error:
                return OneDevice(status="skipped", shards=shards, reason=str(error))
        return against_one_device(*runs)

    # The cause

    def _diagnose(self, worst: SettingResult) -> None:
        assert worst.difference is not None
        done: list[str] = []

        def run_again(setting: Setting, until: int | None) -> TracedRun | None:
            done.append(setting.label)
            self._observer.started(f"looking for the cause: running {setting.label} again")
            name = f"diagnosis/{len(done)}-{setting.slug}"
            record = self._try(setting, name, {"trace": "steps", "trace_until": until})
            if record.status == "interrupted":
                raise KeyboardInterrupt
            run = _read_partial_run(self.verification.directory / name)
            # A failure after the last step that matters is ignored.
            is_short = run is None or (record.status != "ok" and max(run.steps) < (until or math.inf))
            return None if is_short else run

        if worst.setting.killed_at is not None:
            self._note(diagnosis=NOT_SAVED)
            return
        first = worst if worst.difference.among is not None else self.verification.reference
        pair = [
            (result.setting, read_run(self.verification.directory / (result.run_dir or ""))) for result in (first, worst)
        ]
        diagnosis = None
        # After Ctrl-C here, the measured results are still reported, without the cause.
        with contextlib.suppress(KeyboardInterrupt):
            diagnosis = conclude(investigate(worst.difference, pair[0], pair[1], run_again))
        self._note(diagnosis=diagnosis, experiments=tuple(done))


def _skip(result: SettingResult, reason: str) -> SettingResult:
    return dataclasses.replace(result, status="skipped", reason=reason, error="")


def _read_partial_run(run_dir: Path) -> TracedRun | None:
    """The run as far as it was traced; None: not even one step."""
    try:
        return read_run(run_dir)
    except UsageError:
        return None
