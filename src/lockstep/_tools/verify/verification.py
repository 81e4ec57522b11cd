"""The results of a verification as one value, and as ``results.json``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from lockstep._tools.check.findings import Finding
from lockstep._tools.trials.study import Study
from lockstep._tools.trials.trial import Record
from lockstep._tools.verify.diagnosis.causes import Diagnosis
from lockstep._tools.verify.diagnosis.one_device import OneDevice
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.trace.differences import Difference, learned, uses_each_sample_once
from lockstep._tools.verify.trace.lines import combined, number
from lockstep._tools.verify.trace.traced_run import TracedRun


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run that was compared, in figures."""

    first_step: int
    """1, or the step after the last one of a killed launch."""
    num_steps: int
    samples_by_rank: tuple[int, ...]
    weights: str
    """The digest of all weights after the last step."""
    loss: float | None
    """The value ``loss`` of the last evaluation; None: there was none."""
    strategy: str
    learned: bool
    each_sample_once: bool | None
    """Whether no pass used a sample twice; None: unknown, because there are several loaders."""
    num_evaluations: int = 0
    batch_norm: bool = False
    """Whether the model normalizes by the statistics of its shard's samples."""
    dropout: bool = False


def summary_of(run: TracedRun) -> Summary:
    """The summary of a run."""
    losses = [line["values"].get("loss") for line in run.evaluations]
    return Summary(
        first_step=min(run.steps),
        num_steps=run.num_steps,
        samples_by_rank=run.samples_by_rank,
        weights=combined(run.last["weights"]),
        loss=number(losses[-1]) if losses and losses[-1] is not None else None,
        strategy=run.start["strategy"],
        learned=learned(run),
        each_sample_once=uses_each_sample_once(run),
        num_evaluations=len(run.evaluations),
        batch_norm=bool(run.layers.get("batch_norm")),
        dropout=bool(run.layers.get("dropout")),
    )


@dataclass(frozen=True, kw_only=True)
class SettingResult(Record):
    """The outcome of one setting. Its status may also be ``skipped``: there was nothing to kill."""

    setting: Setting
    summary: Summary | None = None
    difference: Difference | None = None
    """The difference from the first setting, or among the ranks of this one; None: there is
    none."""

    @property
    def is_bad(self) -> bool:
        """Whether the setting failed by itself, which ends the verification."""
        is_own = self.difference is not None and (self.difference.among is not None or bool(self.difference.detail))
        return self.status not in ("ok", "skipped") or is_own

    @property
    def passed(self) -> bool:
        """Whether it computed what the first did, and learned something."""
        learned = self.summary is not None and self.summary.learned
        return self.status == "skipped" or (self.status == "ok" and self.difference is None and learned)


@dataclass(frozen=True, kw_only=True)
class Verification(Study):
    """One script under several settings."""

    results: tuple[SettingResult, ...]
    """The outcomes of all settings. The first is the reference for the others."""
    with_one_device: bool = True
    """Whether, for V > 1, the gradient of the first batch is compared with the gradient on one
    device, which does not split the batch."""
    is_shards_chosen: bool = False
    """Whether V was chosen by this command, because neither the script nor the user sets it."""
    one_device: OneDevice | None = None
    """The comparison with one device; None: not compared."""
    diagnosis: Diagnosis | None = None
    experiments: tuple[str, ...] = ()
    """The settings that were run again to find the cause."""
    findings: tuple[Finding, ...] = ()
    """The findings of ``lockstep check`` in the script."""

    @property
    def num_rows(self) -> int:
        """The number of settings to run, plus the comparison with one device."""
        return len(self.results) + self.compares_one_device

    @property
    def compares_one_device(self) -> bool:
        """Whether the gradient is compared with that of one device."""
        return self.with_one_device and self.shards > 1

    @property
    def differs_only_resumed(self) -> bool:
        """Whether all settings that differ resume a run. If others differ, even shards differ among
        themselves, so a difference from one device would show nothing new."""
        return all(result.difference is None or result.setting.killed_at is not None for result in self.results)

    @property
    def reference(self) -> SettingResult:
        """The setting that the others are compared with."""
        return self.results[0]

    @property
    def worst(self) -> SettingResult | None:
        """The setting whose difference comes first in the run; one that resumes a killed launch
        only if no other has one."""
        differing = [(result, result.difference) for result in self.results if result.difference is not None]
        # A difference without a resume explains one with it, but not the other way round.
        by_order = sorted(differing, key=lambda pair: (pair[0].setting.killed_at is not None, pair[1].order))
        return by_order[0][0] if by_order else None

    def findings_on(self, result: SettingResult) -> tuple[Finding, ...]:
        """The findings that may explain why a setting failed or differs: for a setting that
        resumes, the values that a resume resets."""
        is_resumed = result.setting.killed_at is not None
        return tuple(finding for finding in self.findings if (finding.restarts_on_resume if is_resumed else finding.differs))

    @property
    def is_interrupted(self) -> bool:
        """Whether it was stopped from outside."""
        return self.verdict == "interrupted"

    @property
    def verdict(self) -> str:
        """``pass``, ``fail``, or ``interrupted``."""
        as_one_device = self.one_device is None or not self.one_device.is_bad
        if "interrupted" in {result.status for result in (*self.results, self.one_device) if result is not None}:
            return "interrupted"
        return "pass" if as_one_device and all(result.passed for result in self.results) else "fail"

    @property
    def passed(self) -> bool:
        """Whether all settings ran, computed the same, and learned something."""
        return self.verdict == "pass"

    def as_json(self) -> dict[str, Any]:
        """The contents of ``results.json``."""
        return {
            **super().as_json(),
            "verdict": self.verdict,
            "reference": self.reference.setting.number,
            "settings": [_as_json(result) for result in self.results],
            "one_device": None if self.one_device is None else dataclasses.asdict(self.one_device),
            "first_difference": None if self.worst is None else self.worst.setting.number,
            "diagnosis": None if self.diagnosis is None else dataclasses.asdict(self.diagnosis),
            "experiments": self.experiments,
            "is_shards_chosen": self.is_shards_chosen,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def _as_json(result: SettingResult) -> dict[str, Any]:
    fields = dataclasses.asdict(result)
    return {**fields.pop("setting"), **fields}
