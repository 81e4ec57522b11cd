"""Replays a shard sample by sample, to find out which of them made its loss NaN, or so large."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from typing_extensions import override

from lockstep._data.batch import MicroBatchSamples, own_micro_batches
from lockstep._data.batches import cut
from lockstep._listener import Listener
from lockstep._loop.dry_runs import DryRuns
from lockstep._loop.phases import Phases
from lockstep._plan.shards import MicroBatch, StepPlan
from lockstep._tools.replay.culprits import badness
from lockstep._tools.verify.trace.lines import TraceWriter, exact
from lockstep._tools.verify.trace.recorder import plain


class SampleBySample(Listener):
    """Runs each sample of one shard as a dry run, before the shards of a phase.

    Each has the shard's random stream, and the weights and all else from the beginning of the
    phase. Nothing is fetched again: the shard's own batch is split, with its samples as they were
    augmented.

    Args:
        place: the step, and the phase in it, from 0.
        shard: to split.
        phases: of the run.
        dry_runs: runs shards without a lasting effect.
        writer: takes a line for each sample.
    """

    def __init__(self, place: tuple[int, int], shard: int, phases: Phases, dry_runs: DryRuns, writer: TraceWriter) -> None:
        self._place = place
        self._shard = shard
        self._phases = phases
        self._dry_runs = dry_runs
        self._writer = writer
        self._line: dict[str, Any] = {}

    def runs(self, plan: StepPlan, data: Sequence[Any], leads: bool) -> Iterator[MicroBatchSamples]:
        """Yields the shard's single samples, as dry runs, and then the shards of the phase."""
        if (self._phases.step, self._phases.num_done) == self._place:
            for sample in self._samples(plan, data):
                if leads:
                    with self._dry_runs.of_shard(self._shard, copy.deepcopy(self._dry_runs.carried(self._shard)), self):
                        yield sample
                else:
                    yield sample
        yield from own_micro_batches(plan, data, leads)

    def _samples(self, plan: StepPlan, data: Sequence[Any]) -> Iterator[MicroBatchSamples]:
        for micro, batch in own_micro_batches(plan, data, leads=True):
            if micro.shard == self._shard:
                for row in range(micro.num_samples):
                    single = slice(row, row + 1)
                    alone = dataclasses.replace(
                        micro, num_samples=1, samples=micro.samples[single], begins_shard=True, ends_shard=True
                    )
                    yield alone, cut(batch, single, micro.num_samples)

    @override
    def received(self, micro: MicroBatch, data: Any) -> None:
        """Note the sample."""
        self._line.setdefault("sample", plain(micro.samples[0]))

    @override
    def before_backward(self, loss: Tensor, weight: float | Tensor | None) -> None:
        """Note its loss: the worst, if there are several."""
        value = loss.item()
        self._line["loss"] = max(self._line.get("loss", value), value, key=badness)

    @override
    def end_shard(self) -> None:
        """Write the sample's line, if it has a loss."""
        line, self._line = self._line, {}
        if "loss" in line:
            self._writer.write(**{**line, "loss": exact(line["loss"])})
