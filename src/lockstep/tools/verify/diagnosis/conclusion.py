"""The *likely* cause of a difference: something observed in the script's code where the difference arose, and not excluded by
an experiment. Pure, except for reading the script's lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.tools.verify.diagnosis.causes import CAUSES, Cause
from lockstep.tools.verify.diagnosis.experiments import Findings
from lockstep.tools.verify.diagnosis.sets import sets_in
from lockstep.tools.verify.trace.traced_run import Line


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The likely cause of a difference, for the user."""

    cause: str
    """A key of ``CAUSES``."""
    sentence: str
    locations: tuple[str, ...]
    """``file:line  what: source line``, likeliest first."""
    remedy: str
    also_seen: tuple[str, ...]
    ruled_out: tuple[str, ...]
    arose: str
    """In which part of the computation it arose, in words; empty: unknown."""


def conclude(findings: Findings, *, directory: Path | None = None) -> Diagnosis:
    """The likely cause.

    Args:
        findings: of the experiments.
        directory: file names in it are shown relative to it.
    """
    show = _Locations(directory)
    lines = [line for line in findings.evidence if line["kind"] != "file"]
    name, chosen = _cause(findings, lines)
    cause = CAUSES[name]
    if name == "set order":
        locations = tuple(show.location("a set", *where) for where in _sets(findings))
    else:
        locations = tuple(dict.fromkeys(show.line(line) for line in chosen))
    taken = {id(line) for line in chosen}
    # If the cause is known, evidence from elsewhere is only noise.
    also_seen = [line for line in lines if id(line) not in taken and line["scope"] != "outside"]
    if name not in ("unknown", "timing"):
        also_seen = [line for line in also_seen if chosen and name != "threads" and _relevance(findings, line) > 0]
    also_seen.sort(key=lambda line: -_relevance(findings, line))
    return Diagnosis(
        cause=name,
        sentence=_sentence(cause, findings),
        locations=locations[:6],
        remedy=cause.remedy,
        also_seen=tuple(dict.fromkeys(show.line(line) for line in also_seen if line["file"] is not None))[:5],
        ruled_out=_ruled_out(findings, name),
        arose=_arose(findings),
    )


def _cause(findings: Findings, lines: Sequence[Line]) -> tuple[str, list[Line]]:
    """The name of the likely cause, and the evidence for it."""
    stage = findings.difference.stage
    if findings.threads is not None and stage not in ("samples", "content", "steps"):
        return "threads", [line for line in lines if line["kind"] == "threads"]
    if findings.depends_on_hashes:
        return "set order", []
    if stage == "samples" and "ran this shard" in findings.difference.detail:
        return "unknown", []
    if findings.data_by_rank:
        return "data by rank", _nearest(findings, [line for line in lines if line["kind"] == "rank"])
    if nearest := _nearest(findings, [line for line in lines if _is_possible(findings, line["kind"])]):
        causes = {_BY_KIND[line["kind"]] for line in nearest}
        name = next(name for name in CAUSES if name in causes)
        chosen = [line for line in nearest if _BY_KIND[line["kind"]] == name]
        return "data by rank" if name == "rank" and findings.origin.where in _DATA else name, chosen
    if findings.origin.where == "exchange" and findings.strategy not in ("exact", "fsdp"):
        return "rounding", []
    if findings.repeats is False:
        return "timing", []
    return "unknown", []


def _nearest(findings: Findings, lines: Sequence[Line]) -> list[Line]:
    """The most relevant lines; empty: none are relevant."""
    most = max((_relevance(findings, line) for line in lines), default=0)
    return [line for line in lines if most and _relevance(findings, line) == most]


_BY_KIND = {kind: name for name, cause in reversed(CAUSES.items()) for kind in cause.kinds}
_DATA = ("data", "samples")


def _is_possible(findings: Findings, kind: str) -> bool:
    """Whether the experiments do not exclude this kind of evidence."""
    if kind not in _BY_KIND or kind in ("threads", "kept") or (kind == "weights" and findings.strategy == "fsdp"):
        return False  # (fsdp itself changes weights when it gathers them)
    if findings.repeats is True:
        return kind not in ("clock", "entropy", "process")
    if findings.repeats is False:
        return kind not in ("collective", "state", "weights", "rank", "worker")
    return True


_KEPT = ("state", "weights")
_INCIDENTAL = ("state", "clock", "rank")
"""Evidence that says little unless it comes from the very layer: it may have been used for something else."""


def _relevance(findings: Findings, line: Line) -> int:
    """How close evidence is to where the difference arose: 2: there, 1: before it, 0: elsewhere."""
    where, kind, scope, layer = findings.origin.where, line["kind"], line["scope"], line["layer"]
    in_shard = scope == "shard"
    if where in _DATA:
        return 2 if scope == "data" else int(where == "samples" or kind in ("state", "worker", "rank"))
    if where in ("beginning", "update", "evaluation", "exchange", "end"):
        if where == "beginning" and line["step"] > 0:
            return 0
        if in_shard:  # what a shard leaves behind has effects later
            return 2 if kind in _KEPT else int(where == "update")
        return 0 if scope == "data" else 1 if where == "exchange" or (where == "update" and line["step"] == 0) else 2
    if not in_shard:
        return 0
    if kind == "weights" or where in ("unknown", "backward"):
        return 2
    if where == "layer":
        return 2 if layer == findings.origin.layer else int(kind not in _INCIDENTAL)
    return 2 if layer is None else int(kind not in ("state", "clock"))


def _sets(findings: Findings) -> list[tuple[str, int]]:
    files = dict.fromkeys(line["file"] for line in findings.evidence if line["kind"] == "file")
    return [(file, number) for file in files for number in sets_in(Path(file))]


def _sentence(cause: Cause, findings: Findings) -> str:
    text = cause.sentence
    if cause is CAUSES["threads"] and findings.threads is not None:
        labels = [setting.label for setting in findings.settings]
        text += f" ({findings.threads[0]} with {labels[0]}, {findings.threads[1]} with {labels[1]})"
    if cause is CAUSES["timing"] and (sets := _sets(findings)):
        text += f"; or the order of a set of objects (there are sets in line {', '.join(str(line) for _, line in sets[:5])})"
    return text


def _ruled_out(findings: Findings, name: str) -> tuple[str, ...]:
    ruled_out = []
    if findings.repeats is True:
        ruled_out.append("chance and time: each setting agrees with itself when it is run again")
    if findings.repeats is False:
        ruled_out.append("what depends on the number of processes alone: one setting does not even agree with itself")
    if name != "threads" and findings.threads is None:
        ruled_out.append("the number of threads: it is the same")
    if findings.depends_on_hashes is False or (name != "set order" and not findings.vanished and findings.evidence):
        ruled_out.append("the order of sets of texts: another hash seed changes nothing, or the same one does not help")
    return tuple(ruled_out)


_AROSE: Mapping[str, str] = {
    "data": "while the samples were fetched and collated",
    "samples": "in the sampler, or in what the loader was made with",
    "before the model": "inside a shard, before the model: its input differs",
    "after the model": "inside a shard, after the model: its output is the same",
    "backward": "in the backward pass: the loss is the same",
    "exchange": "where gradients are reduced: those of each shard are the same",
    "update": "after batch.shards, in the update: the gradients are the same",
    "beginning": "before the first step",
    "evaluation": "in the evaluation: the weights are the same",
    "end": "after the last step: until then all is the same",
}


def _arose(findings: Findings) -> str:
    origin = findings.origin
    if origin.where == "layer":
        name = origin.layer if origin.layer == "the model" else f"layer {origin.layer}"
        return f"in the forward pass of {name} ({origin.kind}): its input is the same, its output is not"
    return _AROSE.get(origin.where, "")


def conclude_for_killed(evidence: Sequence[Line], *, directory: Path | None = None) -> Diagnosis:
    """Why a run that resumes one that was killed computes something else, with the same settings."""
    show, cause = _Locations(directory), CAUSES["not saved"]
    kept = [line for kind in cause.kinds for line in evidence if line["kind"] == kind]
    return Diagnosis(
        cause="not saved",
        sentence=cause.sentence,
        locations=tuple(dict.fromkeys(show.line(line) for line in kept))[:6],
        remedy=cause.remedy,
        also_seen=(),
        ruled_out=(),
        arose="",
    )


class _Locations:
    """Formats locations in files, with their source lines."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._texts: dict[str, list[str]] = {}

    def line(self, line: Line) -> str:
        """A line of evidence."""
        return self.location(line["what"], line["file"], line["line"])

    def location(self, what: str, file: str | None, number: int | None) -> str:
        """``train.py:12  what:  source line``."""
        if file is None:
            return what
        path = Path(file)
        name: Any = path
        if self._directory is not None and path.is_relative_to(self._directory):
            name = path.relative_to(self._directory)
        if number is None:
            return f"{name}  {what}"
        if file not in self._texts:
            try:
                self._texts[file] = path.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                self._texts[file] = []
        text = self._texts[file][number - 1].strip() if number <= len(self._texts[file]) else ""
        return f"{name}:{number}  {what}" + (f":  {text}" if text else "")
