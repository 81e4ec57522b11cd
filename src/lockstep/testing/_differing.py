"""Describes what differs between the runs of a test, as an error. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from lockstep._tools.check.findings import Finding
from lockstep._tools.verify.diagnosis.causes import Diagnosis
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.trace.differences import Difference
from lockstep._tools.verify.words import describe_diagnosis, describe_difference, findings_under, indented
from lockstep.testing._errors import DifferenceError
from lockstep.testing._ranks import Returned

_NOT_THERE = "not there"


def in_traces(
    name: str,
    difference: Difference,
    reference: Setting,
    setting: Setting,
    diagnosis: Diagnosis | None,
    findings: Sequence[Finding] = (),
    failure: str = "",
) -> DifferenceError:
    """The error for a difference between two traced runs, or among the ranks of one.

    Args:
        name: of the function.
        difference: the first.
        reference: of the run that the other is compared with.
        setting: of the other, or of the only one.
        diagnosis: the likely cause; None: not looked for.
        findings: findings in the function's source.
        failure: how the other run failed, in one line; empty: it did not.
    """
    among = difference.among is not None or bool(difference.detail)
    lines = [
        f"{name}: {line}" if number == 0 else line for number, line in enumerate(_lines(difference, reference, setting))
    ]
    lines += [f"  then it failed: {failure}"] if failure else []
    lines += [] if diagnosis is None else _cause(diagnosis, findings)
    return DifferenceError(
        "\n".join(lines),
        worlds=((setting if among else reference).world_size, setting.world_size),
        stage=difference.stage,
        step=difference.step,
        phase=difference.phase,
        shard=difference.shard,
        samples=difference.samples,
        values=difference.values,
        cause="unknown" if diagnosis is None else diagnosis.cause,
        killed_at=setting.killed_at,
    )


def in_results(
    name: str,
    first: Returned,
    second: Returned,
    setting: Setting,
    *,
    reference: Setting | None = None,
    rank: int = 0,
    findings: Sequence[Finding] = (),
) -> DifferenceError | None:
    """The error for two results that differ; None: they are equal.

    Args:
        name: of the function.
        first: what it returned.
        second: what it returned another time.
        setting: of the second time.
        reference: of the first time; None: both were of one run.
        rank: that of the second time. (That of the first time is 0.)
        findings: findings in the function's source.
    """
    place = next(_differing(first.leaves, second.leaves), None)
    if place is None:
        return None
    values = (first.leaves.get(place, _NOT_THERE), second.leaves.get(place, _NOT_THERE))
    if reference is None:
        names, head = ("rank 0", f"rank {rank}"), f"{setting.label}: the result of rank {rank} differs from that of rank 0"
        remedy = "return values that are equal on every rank, such as batch['loss'] (a rank sees only its shards' losses)"
    else:
        names = reference.label, setting.label
        head = f"{setting.label}: the result differs from that of {reference.label}, although every step was the same"
        remedy = (
            "the result was collected before the kill and is in no checkpoint: keep it in team.state(...)"
            if setting.killed_at is not None
            else "the result depends on the number of processes or the time: return what the steps computed"
        )
    lines = [
        f"{name}: {head}",
        f"  first difference: {place}",
        *(f"    {who}: {value}" for who, value in zip(names, values, strict=True)),
        f"  remedy: {remedy}. (compare_result=False compares only the steps)",
        *indented(2, findings_under("found in the script's text", findings)),
    ]
    return DifferenceError(
        "\n".join(lines),
        worlds=((reference or setting).world_size, setting.world_size),
        stage="result",
        values=values,
        cause="unknown" if setting.killed_at is None else "not saved",
        killed_at=setting.killed_at,
    )


def _lines(difference: Difference, reference: Setting, setting: Setting) -> Iterator[str]:
    return describe_difference(difference, reference=reference.label, label=setting.label)


def _cause(diagnosis: Diagnosis, findings: Sequence[Finding]) -> Sequence[str]:
    if findings or diagnosis.cause != "unknown":
        return list(describe_diagnosis(diagnosis, findings))
    arose = [f"  it arose {diagnosis.arose}"] if diagnosis.arose else []
    return [
        *arose,
        "  look there for code that depends on team.rank, team.world_size, or the number of shards that this process "
        "has run: a counter, a list, a generator that continues from shard to shard",
    ]


def _differing(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[str]:
    return (place for place in dict.fromkeys(chain(first, second)) if first.get(place) != second.get(place))
