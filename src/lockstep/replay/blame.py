"""A shard taken again sample by sample: which of them made its loss NaN, or so large."""

from __future__ import annotations

import dataclasses
from typing import Any

from lockstep.data.batches import cut
from lockstep.data.sources import Deal
from lockstep.plan.shards import MicroStep


class SampleBySample:
    """Puts single samples in the place of one of a step's shards: the loop's body runs once for each.

    All have the shard's random stream, and the weights at the beginning of the step. Nothing is fetched again: what is cut is
    the shard's own batch, as its samples were augmented.

    Args:
        step: the step, as the run counts it.
        shard: the shard whose samples they are.
    """

    def __init__(self, step: int, shard: int) -> None:
        self._step = step
        self._shard = shard

    def __call__(self, deal: Deal) -> Deal:
        """The deal of a step, changed if it is the one."""
        plan, data = deal
        if plan.number != self._step:
            return deal
        micro_steps, batches = list[MicroStep](), list[Any]()
        for micro, batch in zip(plan.micro_steps, data, strict=True):
            if micro.shard != self._shard:  # so that all the rest is as in any step
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
