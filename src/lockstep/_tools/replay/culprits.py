"""Which samples of a shard made its loss NaN, or large, from the loss of each sample alone. Pure,
except for reading files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep._tools.replay.request import SAMPLES
from lockstep._tools.verify.trace.lines import DIRECTORY, number, read_lines
from lockstep._tools.verify.trace.traced_run import TracedRun

_OUTLIER = 6.0
"""The multiple of the usual losses' median that an outlier exceeds. Usual losses are less than half
of the largest one."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample, replayed alone."""

    identity: Any
    """The sample's index in the dataset, or its position in a stream."""
    loss: float


def read_samples(directory: Path) -> list[Sample]:
    """The samples of a shard that was replayed sample by sample, in their order."""
    lines = read_lines(directory / DIRECTORY / f"{SAMPLES}.jsonl")
    return [Sample(identity=line["sample"], loss=number(line["loss"])) for line in lines]


def badness(loss: float) -> tuple[bool, float]:
    """A sort key of losses: what is not finite is worst, and otherwise the largest."""
    return not math.isfinite(loss), 0.0 if math.isnan(loss) else loss


@dataclass(frozen=True, kw_only=True)
class Place:
    """A shard of a phase, and the worst of its losses."""

    phase: int
    shard: int
    loss: float
    name: str
    """The shard and its phase, for the user."""


def worst_place(run: TracedRun, step: int, shard: int | None) -> Place | None:
    """Where a step has its worst loss, of all shards or of one, in any phase and backward call;
    None: it has no loss."""
    places = [
        Place(phase=key.phase, shard=key.shard, loss=number(loss), name=key.name)
        for key, owners in run.shards_of(step)
        if shard in (None, key.shard)
        for loss in owners[0][1]["losses"]
    ]
    return max(places, key=lambda place: badness(place.loss), default=None)


def culprits(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with a NaN or infinite loss, or else the outliers, largest first; empty: there
    are none."""
    bad = [sample for sample in samples if not math.isfinite(sample.loss)]
    if bad or not samples:
        return bad
    # The median is that of the usual losses only: a shard has few samples, so outliers among them
    # would raise it.
    worst = max(sample.loss for sample in samples)
    blamed = [sample for sample in samples if sample.loss >= worst / 2]
    usual = [sample.loss for sample in samples if sample.loss < worst / 2]
    if not usual or worst <= _OUTLIER * statistics.median(usual):
        return []
    return sorted(blamed, key=lambda sample: -sample.loss)


def describe(place: str, samples: Sequence[Sample]) -> list[str]:
    """Lines that name the culprits, or the largest losses if there are none; ``place``: the shard,
    for the user."""
    if not samples:
        return [f"no sample of {place} has a loss when it is alone"]
    blamed = culprits(samples)
    usual = [sample.loss for sample in samples if sample not in blamed]
    middle = statistics.median(usual) if usual else math.nan
    if not blamed:
        largest = ", ".join(_named(sample, "") for sample in sorted(samples, key=lambda sample: -sample.loss)[:3])
        return [
            f"no single sample of {place} is an outlier: the largest losses are of {largest}; the median is {middle:.6g}"
        ]
    words = f"{'sample' if len(blamed) == 1 else 'samples'} {', '.join(_named(sample, 'loss ') for sample in blamed)}"
    if math.isfinite(blamed[0].loss):
        words += f"; the median of the other {len(usual)} is {middle:.6g}"
    return [f"to blame in {place}: {words}"]


def _named(sample: Sample, label: str) -> str:
    return f"{sample.identity} ({label}{sample.loss:.6g})"
