"""A first difference and its likely cause, as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lockstep._tools.check.findings import Finding
from lockstep._tools.verify.diagnosis.causes import Diagnosis
from lockstep._tools.verify.trace.differences import Difference


def describe_difference(difference: Difference, *, reference: str, label: str) -> Iterator[str]:
    """The first difference in lines: what differs from what, then, indented, where, of which
    samples, and both values.

    Args:
        difference: between two runs, or among the ranks of one.
        reference: the name of the run that the other is compared with: ``1 process``.
        label: the name of the other, or of the only one.
    """
    if difference.among is None and difference.detail:
        yield f"{label}: {difference.place}: {difference.detail}"
        return
    first, second = difference.among or (reference, label)
    subject = f"{label} differs" if difference.among is None else f"{label}: {second} differs"
    yield f"{subject} from {first}"
    yield f"  first difference: {difference.place}"
    if difference.samples:
        yield f"    samples of this shard: {samples_of(difference, most=12)}"
    named = zip((first, second), difference.values, strict=True)
    yield from indented(4, (f"{name}: {value}" for name, value in named if value))


def samples_of(difference: Difference, *, most: int) -> str:
    """The identities of the shard's samples, at most so many of them."""
    listed = ", ".join(map(str, difference.samples[:most]))
    return f"{listed}, ... ({len(difference.samples)} in all)" if len(difference.samples) > most else listed


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Findings in lines, each with what to write instead."""
    said = []
    for finding in findings:
        said += [str(finding), f"  write: {finding.remedy}"]
    return said


def findings_under(title: str, findings: Sequence[Finding]) -> Iterator[str]:
    """Findings under a title, in lines; nothing if there are none."""
    if findings:
        yield f"{title}:"
        yield from indented(2, finding_lines(findings))


def describe_diagnosis(diagnosis: Diagnosis, findings: Sequence[Finding]) -> Iterator[str]:
    """The likely cause of a difference, in lines that are indented once.

    Args:
        diagnosis: what the runs show.
        findings: what the reading of the script's text shows.
    """
    if diagnosis.arose:
        yield f"  it arose {diagnosis.arose}"
    # An experiment cannot show what a variable of the script is used for; its code can.
    if findings and diagnosis.cause == "unknown":
        yield from indented(2, findings_under("likely cause, by the script's text", findings))
        return
    yield f"  likely cause: {diagnosis.sentence}"
    yield f"  remedy: {diagnosis.remedy}"
    yield from indented(2, findings_under("found in the script's text", findings))


def indented(width: int, lines: Iterable[str]) -> Iterator[str]:
    """Lines behind so many spaces."""
    return (" " * width + line for line in lines)
