"""Runs one script under several settings, compares what each computed, and looks for the cause where they differ."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lockstep.analysis import runner
from lockstep.analysis.diagnose import Diagnosis, Experiment, Outcome, conclude, investigate
from lockstep.analysis.failure import first_error
from lockstep.analysis.machine import Machine
from lockstep.analysis.runs import TracedRun, read_run
from lockstep.analysis.settings import Setting
from lockstep.analysis.verify import Difference, check, compare, learned, uses_each_sample_once
from lockstep.errors import UsageError
from lockstep.measure.trace import combined, read_evidence

SCHEMA = 1
FILE_NAME = "results.json"
_LAUNCHERS = {"local": "lockstep", "torchrun": "torchrun"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be verified."""

    command: tuple[str, ...]
    """What the user typed, for the record."""
    script: Path
    args: tuple[str, ...] = ()
    settings: tuple[Setting, ...]
    """The others are compared with the first that runs."""
    shards: int
    """One V for all: the answer depends on it."""
    threads: int | None = None
    """Of each process, in all settings; None: as the script has it, or the cores divided by V."""
    num_cores: int = 1
    seed: int | None = None
    """None: the script's own."""
    timeout_s: float | None = None
    """Of each run."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What is kept of a run that was compared."""

    num_steps: int
    samples_by_rank: tuple[int, ...]
    weights: str
    """The digest of all weights after the last step."""
    loss: float | None
    """``loss`` of the last evaluation; None: there was none."""
    strategy: str
    learned: bool
    each_sample_once: bool


@dataclass(frozen=True, kw_only=True)
class SettingResult:
    """What became of one setting."""

    setting: Setting
    status: str = "not run"
    """``ok`` (it ran), ``failed``, ``timeout``, ``interrupted`` or ``not run``."""
    reason: str | None = None
    """Why there is nothing to compare; None if the status is ``ok``."""
    command: tuple[str, ...] = ()
    run_dir: str | None = None
    """Relative to the verification's directory, as is ``log``."""
    log: str | None = None
    exit_status: int | None = None
    command_s: float | None = None
    summary: Summary | None = None
    difference: Difference | None = None
    """From the first setting that ran, or among the ranks of this one."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """One script under several settings."""

    directory: Path
    plan: Plan
    machine: Machine
    results: tuple[SettingResult, ...]
    diagnosis: Diagnosis | None = None
    experiments: tuple[str, ...] = ()
    """What was run to find the cause."""

    @property
    def reference(self) -> SettingResult | None:
        """The setting that the others are compared with."""
        return next((result for result in self.results if result.status == "ok"), None)

    @property
    def worst(self) -> SettingResult | None:
        """The setting whose difference comes first in the run."""
        differing = [result for result in self.results if result.difference is not None]
        return min(differing, key=lambda result: result.difference.order if result.difference else (0, 0, 0), default=None)

    @property
    def passed(self) -> bool:
        """Whether all settings ran, computed the same, and learned something."""
        return all(
            result.status == "ok" and result.difference is None and result.summary is not None and result.summary.learned
            for result in self.results
        )

    @property
    def verdict(self) -> str:
        """``pass``, ``fail``, or ``interrupted``."""
        if any(result.status == "interrupted" for result in self.results):
            return "interrupted"
        return "pass" if self.passed else "fail"

    def as_json(self) -> dict[str, Any]:
        """The contents of ``results.json``."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "command": self.plan.command,
            "script": str(self.plan.script),
            "args": self.plan.args,
            "directory": str(self.directory.resolve()),
            "shards": self.plan.shards,
            "threads": self.plan.threads,
            "seed": self.plan.seed,
            "machine": dataclasses.asdict(self.machine),
            "reference": None if self.reference is None else self.reference.setting.number,
            "settings": [_as_json(result) for result in self.results],
            "first_difference": None if self.worst is None else self.worst.setting.number,
            "diagnosis": None if self.diagnosis is None else dataclasses.asdict(self.diagnosis),
            "experiments": self.experiments,
        }


def _as_json(result: SettingResult) -> dict[str, Any]:
    fields = dataclasses.asdict(result)
    return {**fields.pop("setting"), **fields}


class Observer(Protocol):
    """Told how a verification goes on."""

    def started(self, number: int | None, what: str) -> None:
        """A run is about to be started: a setting by its number, or an experiment (None)."""

    def waiting(self, elapsed_s: float) -> None:
        """Several times a second while it runs."""

    def ended(self, verification: Verification, result: SettingResult) -> None:
        """A setting's run ended, one way or another."""


def verify(plan: Plan, *, directory: Path, machine: Machine, observer: Observer) -> Verification:
    """Run every setting, compare, and look for the cause of the first difference.

    A setting that fails is a line with a reason. ``results.json`` is written anew after each. A KeyboardInterrupt ends the
    run and the verification.

    Raises:
        UsageError: the first setting's run shows that there is nothing to verify in this script.
    """
    verification = Verification(
        directory=directory,
        plan=plan,
        machine=machine,
        results=tuple(SettingResult(setting=setting, reason="stopped before") for setting in plan.settings),
    )
    reference: TracedRun | None = None
    for place, setting in enumerate(plan.settings):
        observer.started(setting.number, setting.label)
        result, run = _run_setting(plan, setting, directory, observer)
        if result.status == "nothing":
            raise UsageError(result.reason or "")
        if run is not None:
            found = check(run)
            if found is None and reference is not None:
                found = compare(reference, run)
            reference = reference or run
            result = dataclasses.replace(result, difference=found)
        results = (*verification.results[:place], result, *verification.results[place + 1 :])
        verification = dataclasses.replace(verification, results=results)
        _write(verification)
        observer.ended(verification, result)
        if result.status == "interrupted":
            return verification
    if verification.worst is not None:
        verification = _diagnose(verification, observer)
        _write(verification)
    return verification


def _run_setting(
    plan: Plan, setting: Setting, directory: Path, observer: Observer
) -> tuple[SettingResult, TracedRun | None]:
    run_dir = directory / "runs" / setting.slug
    start, log, ended = _run(plan, setting, run_dir, {"trace": "steps"}, {}, observer)
    result = SettingResult(
        setting=setting,
        status="failed",
        command=start.command,
        run_dir=str(run_dir.relative_to(directory)),
        log=str(log.relative_to(directory)),
        exit_status=ended.exit_status,
        command_s=ended.wall_s,
    )
    if ended.status == "timeout":
        reason = f"did not end within {plan.timeout_s:g} s and was stopped: did its processes wait for each other?"
        return dataclasses.replace(result, status="timeout", reason=reason), None
    if ended.status == "interrupted":
        return dataclasses.replace(result, status="interrupted", reason="stopped from outside"), None
    if ended.exit_status != 0:
        reason = first_error(log.read_text(encoding="utf-8", errors="replace"), ended.exit_status)
        return dataclasses.replace(result, reason=reason), None
    try:
        run = read_run(run_dir)
        if run.start["world_size"] != setting.world_size:
            raise UsageError(f"the script ran as {run.start['world_size']} processes, not as {setting.world_size}")
        if not run.is_complete:
            raise UsageError("the trace has no end: did a process leave without an error?")
    except UsageError as error:
        # What the first run lacks, all lack.
        status = "nothing" if setting is plan.settings[0] else "failed"
        return dataclasses.replace(result, status=status, reason=str(error)), None
    return dataclasses.replace(result, status="ok", summary=_summary(run)), run


def _summary(run: TracedRun) -> Summary:
    losses = [line["values"].get("loss") for line in run.evaluations]
    return Summary(
        num_steps=run.num_steps,
        samples_by_rank=run.samples_by_rank,
        weights=combined(run.last["weights"]),
        loss=float.fromhex(losses[-1]) if losses and losses[-1] is not None else None,
        strategy=run.start["strategy"],
        learned=learned(run),
        each_sample_once=uses_each_sample_once(run),
    )


def _run(
    plan: Plan,
    setting: Setting,
    run_dir: Path,
    trace: dict[str, object],
    variables: dict[str, str],
    observer: Observer,
) -> tuple[runner.Start, Path, runner.Ended]:
    # The log lies beside the run directory, as that of a comparison.
    log = run_dir.with_name(run_dir.name + ".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    settings: dict[str, object] = {"shards": plan.shards, "run_dir": str(run_dir.resolve()), **trace}
    for name, value in (("threads", plan.threads), ("seed", plan.seed), ("workers", setting.workers)):
        if value is not None:
            settings[name] = value
    start = runner.start_under(
        _LAUNCHERS[setting.launcher],
        num_processes=setting.world_size,
        settings=settings,
        script=plan.script,
        args=plan.args,
        threads=plan.threads or max(1, plan.num_cores // plan.shards),
        variables=variables,
    )
    ended = runner.run_to_end(start, log=log, timeout_s=plan.timeout_s, on_tick=observer.waiting)
    return start, log, ended


def _diagnose(verification: Verification, observer: Observer) -> Verification:
    worst, reference = verification.worst, verification.reference
    assert worst is not None
    assert worst.difference is not None
    assert reference is not None
    done: list[str] = []

    def laboratory(experiment: Experiment) -> Outcome | None:
        what = f"{experiment.purpose} ({experiment.setting.label})"
        done.append(what)
        observer.started(None, what)
        run_dir = verification.directory / "diagnosis" / f"{len(done)}-{experiment.level}-{experiment.setting.slug}"
        trace: dict[str, object] = {"trace": experiment.level}
        if experiment.until is not None:
            trace["trace_until"] = experiment.until
        variables = {} if experiment.hash_seed is None else {"PYTHONHASHSEED": str(experiment.hash_seed)}
        _, _, ended = _run(verification.plan, experiment.setting, run_dir, trace, variables, observer)
        if ended.status == "interrupted":
            raise KeyboardInterrupt
        try:
            return Outcome(run=read_run(run_dir), evidence=read_evidence(run_dir)) if ended.exit_status == 0 else None
        except UsageError:
            return None

    first = worst if worst.difference.among is not None else reference
    pair = [(result.setting, read_run(verification.directory / (result.run_dir or ""))) for result in (first, worst)]
    try:
        findings = investigate(worst.difference, pair[0], pair[1], laboratory)
    except KeyboardInterrupt:  # what was measured is there; only the cause is not
        return dataclasses.replace(verification, experiments=tuple(done))
    diagnosis = conclude(findings, directory=Path.cwd())
    return dataclasses.replace(verification, diagnosis=diagnosis, experiments=tuple(done))


def _write(verification: Verification) -> None:
    path = verification.directory / FILE_NAME
    draft = path.with_suffix(".json.new")
    text = json.dumps(verification.as_json(), indent=2, ensure_ascii=False, default=str)
    draft.write_text(text + "\n", encoding="utf-8")
    os.replace(draft, path)  # noqa: PTH105 - the atomic one, by its usual name


def describe_samples(results: Sequence[SettingResult]) -> str:
    """How samples were used, in the words of the last line."""
    summaries = [result.summary for result in results if result.summary is not None]
    once = all(summary.each_sample_once for summary in summaries)
    return "each sample used once an epoch" if once else "the sampler draws samples more than once an epoch"
