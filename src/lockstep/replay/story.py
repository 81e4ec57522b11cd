"""What a replay has shown, as values and as lines: each step, and whether it was the run's. Pure, but for reading the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.replay.comparison import Comparison, compare, in_words
from lockstep.replay.digests import Digests, read_digests
from lockstep.replay.record import OF_BITS, Fields, RunRecord
from lockstep.replay.request import SHOWN, Request
from lockstep.trace.lines import DIRECTORY, number, read_lines
from lockstep.trace.traced_run import ShardKey, TracedRun, read_run

TOLERANCE = 1e-3
"""Up to which losses are equal, relatively, where a run promises no bits."""
_SHOWN_SAMPLES = 8
_SHOWN_NORMS = 12


@dataclass(kw_only=True)
class Shown:
    """What all processes have noted beside the trace."""

    batch_norm: list[str] = field(default_factory=list)
    shards: dict[ShardKey, dict[str, float]] = field(default_factory=dict)
    """Norms by parameter, of a shard's own gradient."""
    phases: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    """Norms by parameter, by step and phase."""
    rates: dict[int, dict[str, float]] = field(default_factory=dict)
    """Learning rates by step."""


def read_shown(directory: Path) -> Shown:
    """What the processes of a replay have noted."""
    shown = Shown()
    for path in sorted((directory / DIRECTORY).glob(f"{SHOWN}-*.jsonl")):
        for line in read_lines(path):
            if line["event"] == "model":
                shown.batch_norm = line["batch_norm"]
            elif line["event"] == "shard":
                key = ShardKey(line["step"], line["phase"], line["shard"], line["part"])
                shown.shards[key] = _numbers(line["norms"])
            elif line["event"] == "phase":
                shown.phases[line["step"], line["phase"]] = _numbers(line["norms"])
            elif line["event"] == "step":
                shown.rates[line["step"]] = _numbers(line["rates"])
    return shown


def _numbers(texts: Mapping[str, str]) -> dict[str, float]:
    return {name: number(text) for name, text in texts.items()}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a replay took the run's steps."""

    status: str
    """``equal``, ``equal up to rounding``, ``different``, or ``unknown``."""
    comparison: Comparison | None
    lines: tuple[str, ...]


def judge(request: Request, record: RunRecord, here: Fields, digests: Digests | None, mine: Digests) -> Verdict:
    """Compare a replay with its run.

    Args:
        request: what was replayed.
        record: of the run.
        here: the event ``start`` of the replay.
        digests: the run's journal; None: it has none.
        mine: the replay's.
    """
    launch = record.launch_of(request.first).start
    unlike = [
        f"{name} is {here[name]} here, and was {launch[name]} in the run"
        for name in OF_BITS
        if name in here and name in launch and here[name] != launch[name]
    ]
    notes = list(unlike)
    if _is_other(here, launch, "script_sha256"):
        notes.append("the script is another one now: its SHA-256 differs from that in the run's journal")
    if digests is None:
        return Verdict(
            status="unknown",
            comparison=None,
            lines=(*notes, "not compared: the run has no digest journal (--journal-every 0, or an older lockstep)"),
        )
    steps = range(request.after + 1, request.last + 1)
    comparison = compare(digests, mine, steps)
    missing = [step for step in request.steps if step not in comparison.steps]
    if comparison.difference is None:
        if missing:
            known = f"; up to there, {_counted(comparison)} are" if comparison.steps else ""
            line = f"step {missing[0]} cannot be compared: the run's digest journal has no line of it{known}"
            return Verdict(status="unknown", comparison=comparison, lines=(*notes, line))
        return Verdict(
            status="equal", comparison=comparison, lines=(*notes, f"EQUAL to the run, to the bit: {_counted(comparison)}")
        )
    why = in_words(comparison.difference)
    if not record.birth.exact and comparison.difference.stage in ("loss", "gradient", "state"):
        near = compare(digests, mine, steps, TOLERANCE)
        how = (
            "the run has no shards=, so its answer is the same up to rounding only, for another number of processes: "
            f"compared within {TOLERANCE:g} of each loss"
        )
        if near.difference is None and not missing_in(near, request):
            return Verdict(
                status="equal up to rounding",
                comparison=near,
                lines=(*notes, how, f"EQUAL up to that: losses of {len(near.steps)} steps"),
            )
        if near.difference is not None:
            return Verdict(
                status="different",
                comparison=near,
                lines=(*notes, how, f"DIFFERENT all the same, first in {in_words(near.difference)} (in the replay)"),
            )
    cause = _cause(comparison.difference.stage, has_notes=bool(notes), was_unlike=bool(unlike))
    return Verdict(
        status="different",
        comparison=comparison,
        lines=(*notes, f"DIFFERENT from the run, first in {why} (in the replay)", cause),
    )


def missing_in(comparison: Comparison, request: Request) -> list[int]:
    """The steps to show that were not compared."""
    return [step for step in request.steps if step not in comparison.steps]


def _is_other(here: Fields, launch: Fields, name: str) -> bool:
    return here.get(name) is not None and launch.get(name) is not None and here[name] != launch[name]


def _counted(comparison: Comparison) -> str:
    after = f", gradient and state after {_listed(comparison.states)}" if comparison.states else ""
    first, last = comparison.steps[0], comparison.steps[-1]
    return f"samples and losses of {f'step {first}' if first == last else f'steps {first} to {last}'}{after}"


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) <= 6 else f"{steps[0]}, {steps[1]}, ..., {steps[-1]}"


def _cause(stage: str, *, has_notes: bool, was_unlike: bool) -> str:
    if stage == "content":
        return (
            "the same samples hold something else now: the data set has changed since, or what is done to its samples depends "
            "on more than their index and the random stream"
        )
    if stage == "samples":
        return "other samples are drawn now: the data set's length, the sampler or the script has changed since"
    if was_unlike:
        return "bits hold for one version of PyTorch, one kind of device and one number of threads: see above"
    if has_notes:
        return "the script has changed: see above"
    return (
        "with the same script and software: the script depends on something that is in no checkpoint (the time, the host, a "
        "variable that is not registered, a kernel that is not deterministic). lockstep verify finds what"
    )


def lines_of_steps(request: Request, run: TracedRun, shown: Shown, *, with_samples: bool) -> Iterator[str]:
    """What is shown of each step."""
    for step in request.steps:
        if step not in run.steps:
            continue
        rates = ", ".join(f"{name} {rate:g}" for name, rate in shown.rates.get(step, {}).items())
        yield f"step {step}" + (f"  learning rate: {rates}" if rates else "")
        for key, owners in run.shards_of(step):
            if request.shard not in (None, key.shard):
                continue
            line = owners[0][1]
            samples = [sample for batch in line["batches"] for sample in batch["samples"]]
            where = f"shard {key.shard}" + (f", part {key.part + 1}" if key.part else "")
            where += f", phase {key.phase + 1}" if key.phase else ""
            losses = " and ".join(f"{number(loss):.6g}" for loss in line["losses"]) or "none"
            yield f"  {where}: loss {losses}, {len(samples)} samples: {_samples(samples, all_of_them=with_samples)}"
            if request.shard is not None:
                yield from _norms(shown.shards.get(key, {}), "its own gradient's norm")
        for (of_step, phase), norms in sorted(shown.phases.items()):
            if of_step == step:
                yield from _norms(norms, "gradient norm" + (f", phase {phase + 1}" if phase else ""))


def _samples(samples: Sequence[Any], *, all_of_them: bool) -> str:
    if all_of_them or len(samples) <= _SHOWN_SAMPLES:
        return " ".join(map(str, samples))
    return f"{' '.join(map(str, samples[:_SHOWN_SAMPLES]))} ..."


def _norms(norms: Mapping[str, float], label: str) -> Iterator[str]:
    if not norms:
        return
    whole = sum(norm * norm for norm in norms.values()) ** 0.5
    yield f"  {label}: {whole:.6g}"
    largest = sorted(norms, key=lambda name: -norms[name] if norms[name] == norms[name] else float("-inf"))
    width = max(map(len, largest[:_SHOWN_NORMS]))
    for name in largest[:_SHOWN_NORMS]:
        yield f"    {name:{width}}  {norms[name]:.6g}"
    if len(largest) > _SHOWN_NORMS:
        yield f"    and {len(largest) - _SHOWN_NORMS} smaller ones"


@dataclass(frozen=True, kw_only=True)
class Told:
    """All that a replay has left."""

    run: TracedRun
    shown: Shown
    digests: Digests


def read_told(directory: Path) -> Told | None:
    """What a replay has left in its directory; None: not even a step."""
    try:
        return Told(run=read_run(directory), shown=read_shown(directory), digests=read_digests(directory))
    except UsageError:
        return None
