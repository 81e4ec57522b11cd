"""Which samples of a shard made its loss NaN, or so large, from the losses of each alone. Pure, but for reading the files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.trace.lines import number, read_trace

_TIMES = 3.0
"""More than twice that many times the median of the others is what stands out."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample, taken alone."""

    identity: Any
    """Its index in the data set, or its position in a stream."""
    loss: float


def read_samples(directory: Path, shard: int) -> list[Sample]:
    """The samples of the shard in a replay that blames, in their order."""
    lines = [line for line in read_trace(directory)[0] if line["event"] == "shard"]
    lines = [line for line in lines if (line["phase"], line["shard"]) == (0, shard)]
    return [
        Sample(identity=line["batches"][0]["samples"][0], loss=number(line["losses"][-1]))
        for line in lines
        if line["losses"]
    ]


def culprits(samples: Sequence[Sample]) -> list[Sample]:
    """Those whose loss is not a number; or else those that stand out, the largest first; empty: none does."""
    bad = [sample for sample in samples if not math.isfinite(sample.loss)]
    if bad or not samples:
        return bad
    worst = max(sample.loss for sample in samples)
    blamed = [sample for sample in samples if sample.loss >= worst / 2]
    usual = [sample.loss for sample in samples if sample.loss < worst / 2]
    if not usual or worst / 2 <= _TIMES * statistics.median(usual):
        return []
    return sorted(blamed, key=lambda sample: -sample.loss)


def in_words(shard: int, samples: Sequence[Sample]) -> list[str]:
    """What is said of them."""
    blamed = culprits(samples)
    if any(not math.isfinite(sample.loss) for sample in blamed):
        named = ", ".join(f"{sample.identity} (loss {sample.loss})" for sample in blamed)
        return [f"to blame in shard {shard}: {'sample' if len(blamed) == 1 else 'samples'} {named}"]
    usual = [sample.loss for sample in samples if sample not in blamed]
    middle = statistics.median(usual) if usual else math.nan
    if blamed:
        named = ", ".join(f"{sample.identity} (loss {sample.loss:.6g})" for sample in blamed)
        word = "sample" if len(blamed) == 1 else "samples"
        return [f"to blame in shard {shard}: {word} {named}; the median of the other {len(usual)} is {middle:.6g}"]
    largest = sorted(samples, key=lambda sample: -sample.loss)[:3]
    named = ", ".join(f"{sample.identity} ({sample.loss:.6g})" for sample in largest)
    return [
        f"no sample of shard {shard} stands out by itself: the largest losses are of {named}; the median is {middle:.6g}"
    ]
