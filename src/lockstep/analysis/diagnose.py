"""Why two runs differ: experiments that tell causes apart, and what they add up to.

``investigate`` runs them; ``conclude``, which draws the conclusion, is pure. It names the *likely* cause: what was seen in
the script's code where the difference arose, and not excluded by an experiment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.analysis.causes import CAUSES, Cause
from lockstep.analysis.differences import Difference, Origin, check, compare, origin
from lockstep.analysis.runs import Line, TracedRun
from lockstep.analysis.sets import sets_in
from lockstep.analysis.settings import Setting

_HASH_SEEDS = (1, 2, 3, 4)  # with a set of two texts, every other seed gives the same order


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One more run of a setting, up to the step that differs."""

    purpose: str
    """What the user is told while it runs."""
    setting: Setting
    level: str
    """How much to trace: see ``RunConfig.trace``."""
    until: int | None
    hash_seed: int | None = None
    """The seed of Python's hashes, on which the order of sets depends; None: another one in every run."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an experiment left."""

    run: TracedRun
    evidence: Sequence[Line]


Laboratory = Callable[[Experiment], Outcome | None]
"""Runs an experiment; None: it failed."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What is known of a difference."""

    difference: Difference
    settings: tuple[Setting, Setting]
    strategy: str
    repeats: bool | None = None
    """Whether each setting agrees with itself when it is run again; None: not known."""
    depends_on_hashes: bool | None = None
    """Whether the answer depends on the seed of Python's hashes, and on nothing else that was seen; None: not known."""
    vanished: bool = False
    """Whether the difference was gone with one hash seed for both, and all calls watched."""
    evidence: Sequence[Line] = ()
    threads: tuple[int, int] | None = None
    """The numbers of threads where they first differ; None: they do not."""
    data_by_rank: bool = False
    """Whether rank 0 read the same data with both settings, and the other ranks never did."""
    origin: Origin = dataclasses.field(default_factory=lambda: Origin(where="unknown"))


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The likely cause of a difference, for a person."""

    cause: str
    """A key of ``CAUSES``."""
    sentence: str
    locations: tuple[str, ...]
    """``what`` and ``file:line`` with the line itself, the likeliest first."""
    remedy: str
    also_seen: tuple[str, ...]
    ruled_out: tuple[str, ...]
    arose: str
    """In which part of the computation it arose, in words; empty if that is not known."""


# Experiments


def investigate(
    difference: Difference, reference: tuple[Setting, TracedRun], other: tuple[Setting, TracedRun], run: Laboratory
) -> Findings:
    """Run what tells causes apart. Experiments that fail are left out: less is known then."""
    until: int | None = max(difference.step, 1) + (difference.stage == "evaluation")
    findings = Findings(
        difference=difference,
        settings=(reference[0], other[0]),
        strategy=other[1].start["strategy"],
        threads=_threads_that_differ(reference[1], other[1], difference),
        data_by_rank=difference.stage == "content" and _is_by_rank(reference[1], other[1]),
        origin=origin(difference, None, None),
    )
    findings = dataclasses.replace(findings, repeats=_repeats(reference, other, until, run))
    watched = [
        run(Experiment(purpose="watching what the script calls", setting=setting, level="calls", until=until, hash_seed=0))
        for setting in dict.fromkeys((reference[0], other[0]))
    ]
    there = [outcome for outcome in watched if outcome is not None]
    evidence = [line for outcome in there for line in outcome.evidence]
    runs = [outcome.run for outcome in there]
    findings = dataclasses.replace(
        findings,
        evidence=evidence,
        origin=origin(difference, runs[0], runs[1]) if len(runs) == 2 else findings.origin,
        vanished=_has_vanished(runs, until, difference),
    )
    if findings.vanished:
        dependence = _depends_on_hashes(reference[0], runs[0], until, run)
        findings = dataclasses.replace(findings, depends_on_hashes=dependence)
    if findings.repeats is False and not findings.depends_on_hashes:
        warned = run(
            Experiment(
                purpose="asking PyTorch for deterministic kernels", setting=reference[0], level="kernels", until=until
            )
        )
        if warned is not None:
            findings = dataclasses.replace(findings, evidence=[*evidence, *warned.evidence])
    return findings


def _repeats(
    reference: tuple[Setting, TracedRun], other: tuple[Setting, TracedRun], until: int | None, run: Laboratory
) -> bool | None:
    known = False
    for setting, before in {reference[0]: reference[1], other[0]: other[1]}.items():
        again = run(Experiment(purpose="does it agree with itself?", setting=setting, level="steps", until=until))
        if again is None:
            continue
        known = True
        if compare(before, again.run, until=until) is not None:
            return False
    return True if known else None


def _has_vanished(runs: Sequence[TracedRun], until: int | None, difference: Difference) -> bool:
    if difference.stage == "ranks":
        return bool(runs) and check(runs[-1]) is None
    return len(runs) == 2 and compare(runs[0], runs[1], until=until) is None


def _depends_on_hashes(setting: Setting, with_seed_0: TracedRun, until: int | None, run: Laboratory) -> bool | None:
    """Whether another hash seed gives another answer. (That the same one gives the same has been seen.)"""
    known = False
    for hash_seed in _HASH_SEEDS:
        purpose = "does the order of a set matter?"
        outcome = run(Experiment(purpose=purpose, setting=setting, level="steps", until=until, hash_seed=hash_seed))
        if outcome is None:
            continue
        known = True
        if compare(with_seed_0, outcome.run, until=until) is not None:
            return True
    return False if known else None


def _threads_that_differ(reference: TracedRun, other: TracedRun, difference: Difference) -> tuple[int, int] | None:
    for key, owners in sorted(reference.shards.items()):
        if key.step > max(difference.step, 1) or key not in other.shards:
            continue
        numbers = owners[0][1]["threads"], other.shards[key][0][1]["threads"]
        if None not in numbers and numbers[0] != numbers[1]:
            return numbers
    return None


def _is_by_rank(reference: TracedRun, other: TracedRun) -> bool:
    """Whether rank 0 read the same data as the reference, and the other ranks never did. (In one step alone that may be
    chance: a generator that a process has not drawn from yet gives everywhere the same.)"""
    found: dict[bool, set[bool]] = {True: set(), False: set()}
    for key, ((rank, line), *_) in other.shards.items():
        if key in reference.shards:
            contents = [[batch["content"] for batch in one["batches"]] for one in (line, reference.shards[key][0][1])]
            found[rank == 0].add(contents[0] == contents[1])
    return min(reference.num_steps, other.num_steps) > 1 and found == {True: {True}, False: {False}}


# The conclusion


def conclude(findings: Findings, *, directory: Path | None = None) -> Diagnosis:
    """The likely cause. Pure, but for reading the script's lines.

    Args:
        findings: what is known.
        directory: what file names are shown relative to.
    """
    show = _Shower(directory)
    lines = [line for line in findings.evidence if line["kind"] != "file"]
    name, chosen = _cause(findings, lines)
    cause = CAUSES[name]
    if name == "set order":
        locations = tuple(show.location("a set", *where) for where in _sets(findings))
    else:
        locations = tuple(dict.fromkeys(show.line(line) for line in chosen))
    taken = {id(line) for line in chosen}
    # Where the cause is known, what was seen elsewhere is only noise.
    others = [line for line in lines if id(line) not in taken and line["scope"] != "outside"]
    if name not in ("unknown", "timing"):
        others = [line for line in others if chosen and name != "threads" and _relevance(findings, line) > 0]
    others.sort(key=lambda line: -_relevance(findings, line))
    return Diagnosis(
        cause=name,
        sentence=_sentence(cause, findings),
        locations=locations[:6],
        remedy=cause.remedy,
        also_seen=tuple(dict.fromkeys(show.line(line) for line in others if line["file"] is not None))[:5],
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
        found = {_BY_KIND[line["kind"]] for line in nearest}
        name = next(name for name in CAUSES if name in found)
        chosen = [line for line in nearest if _BY_KIND[line["kind"]] == name]
        return "data by rank" if name == "rank" and findings.origin.where in _DATA else name, chosen
    if findings.origin.where == "exchange" and findings.strategy != "exact":
        return "rounding", []
    if findings.repeats is False:
        return "timing", []
    return "unknown", []


def _nearest(findings: Findings, lines: Sequence[Line]) -> list[Line]:
    """Those nearest to where the difference arose, if they are of any relevance."""
    most = max((_relevance(findings, line) for line in lines), default=0)
    return [line for line in lines if most and _relevance(findings, line) == most]


_BY_KIND = {kind: name for name, cause in reversed(CAUSES.items()) for kind in cause.kinds}
_DATA = ("data", "samples")


def _is_possible(findings: Findings, kind: str) -> bool:
    """Whether an experiment leaves room for this kind of cause."""
    if kind not in _BY_KIND or kind in ("threads", "kept") or (kind == "weights" and findings.strategy == "fsdp"):
        return False  # (fsdp itself changes weights, as it gathers them)
    if findings.repeats is True:
        return kind not in ("clock", "entropy", "process", "kernel")
    if findings.repeats is False:
        return kind not in ("collective", "state", "weights", "rank", "worker")
    return True


_KEPT = ("state", "weights")
_PASSING = ("state", "clock", "rank")
"""What tells little where it was not seen at that very point: it may have been used for something else."""


def _relevance(findings: Findings, line: Line) -> int:
    """How near to where the difference arose: 2 there, 1 before it, 0 elsewhere."""
    where, kind, scope, layer = findings.origin.where, line["kind"], line["scope"], line["layer"]
    in_shard = scope == "shard"
    if kind == "kernel":
        return 2 if in_shard else 1
    if where in _DATA:
        return 2 if scope == "data" else int(where == "samples" or kind in ("state", "worker", "rank"))
    if where in ("beginning", "update", "evaluation", "exchange"):
        if where == "beginning" and line["step"] > 0:
            return 0
        if in_shard:  # what a shard leaves behind can be seen later
            return 2 if kind in _KEPT else int(where == "update")
        return 0 if scope == "data" else 1 if where == "exchange" or (where == "update" and line["step"] == 0) else 2
    if not in_shard:
        return 0
    if kind == "weights" or where in ("unknown", "backward"):
        return 2
    if where == "layer":
        return 2 if layer == findings.origin.layer else int(kind not in _PASSING)
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
    found = []
    if findings.repeats is True:
        found.append("chance and time: each setting agrees with itself when it is run again")
    if findings.repeats is False:
        found.append("what depends on the number of processes alone: one setting does not even agree with itself")
    if name != "threads" and findings.threads is None:
        found.append("the number of threads: it is the same")
    if findings.depends_on_hashes is False or (name != "set order" and not findings.vanished and findings.evidence):
        found.append("the order of sets of texts: another hash seed changes nothing, or the same one does not help")
    return tuple(found)


_AROSE: Mapping[str, str] = {
    "data": "while the samples were fetched and collated",
    "samples": "in the sampler, or in what the loader was made with",
    "before the model": "inside a shard, before the model: its input differs",
    "after the model": "inside a shard, after the model: its output is the same",
    "backward": "in the backward pass: the loss is the same",
    "exchange": "where gradients meet: those of each shard are the same",
    "update": "after batch.shards, in the update: the gradients are the same",
    "beginning": "before the first step",
    "evaluation": "in the evaluation: the weights are the same",
}


def _arose(findings: Findings) -> str:
    found = findings.origin
    if found.where == "layer":
        name = found.layer if found.layer == "the model" else f"layer {found.layer}"
        return f"in the forward pass of {name} ({found.kind}): its input is the same, its output is not"
    return _AROSE.get(found.where, "")


def conclude_for_killed(evidence: Sequence[Line], *, directory: Path | None = None) -> Diagnosis:
    """Why a run that goes on where another was killed computes something else, if all settings else are the same."""
    show, cause = _Shower(directory), CAUSES["not saved"]
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


class _Shower:
    """Shows places in files to a person."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._texts: dict[str, list[str]] = {}

    def line(self, line: Line) -> str:
        """A line of evidence."""
        return self.location(line["what"], line["file"], line["line"])

    def location(self, what: str, file: str | None, number: int | None) -> str:
        """``train.py:12  what: the line``."""
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
