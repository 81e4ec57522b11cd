"""Replays a shard sample by sample, to find out which of them made its loss NaN, or so large."""

from __future__ import annotations

import dataclasses
from typing import Any

from typing_extensions import override

from lockstep.data.batches import cut
from lockstep.data.sources import Deal
from lockstep.listener import Listener
from lockstep.plan.shards import MicroStep


class SampleBySample(Listener):
    """Splits one shard of a step into single samples, so that the loop's body runs once for each.

    Each has the shard's random stream, and the weights from the beginning of the step. Nothing is fetched again: the
    shard's own batch is split, with its samples as they were augmented.

    Args:
        step: its number in the run.
        shard: to split.
    """

    def __init__(self, step: int, shard: int) -> None:
        self._step = step
        self._shard = shard

    @override
    def made_loader(self, loader: Any, number: int) -> None:
        """Split its deals, too: the loader that leads the step is not known yet."""
        loader.change_deals(self._split)

    def _split(self, deal: Deal) -> Deal:
        """The deal of a step, with its shard split if it is that step."""
        plan, data = deal
        if plan.number != self._step:
            return deal
        micro_steps, batches = list[MicroStep](), list[Any]()
        for micro, batch in zip(plan.micro_steps, data, strict=True):
            if micro.shard != self._shard:  # the rest of the step stays as it is
                micro_steps.append(micro)
                batches.append(batch)
                continue
            for row in range(micro.num_samples):
                single = slice(row, row + 1)
                micro_steps.append(
                    dataclasses.replace(
                        micro,
                        num_samples=1,
                        samples=micro.samples[single],
                        begins_shard=micro.begins_shard and row == 0,
                        ends_shard=micro.ends_shard and row == micro.num_samples - 1,
                        is_last=micro.is_last and row == micro.num_samples - 1,
                    )
                )
                batches.append(cut(batch, single, micro.num_samples))
        for index, micro in enumerate(micro_steps):
            micro.index = index
        return dataclasses.replace(plan, micro_steps=micro_steps), batches
