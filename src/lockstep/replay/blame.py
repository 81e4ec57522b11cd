"""A shard taken again sample by sample: which of them made its loss NaN, or so large."""

from __future__ import annotations

import dataclasses
from typing import Any

from lockstep.data.batches import cut
from lockstep.data.sources import Deal


class SampleBySample:
    """Puts single samples in the place of a step's shards: the loop's body runs once for each.

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
        micro_steps, batches = [], list[Any]()
        for micro, batch in zip(plan.micro_steps, data, strict=True):
            if micro.shard != self._shard:
                continue
            for row in range(micro.num_samples):
                one = slice(row, row + 1)
                micro_steps.append(
                    dataclasses.replace(
                        micro, num_samples=1, samples=micro.samples[one], begins_shard=False, ends_shard=False, is_last=False
                    )
                )
                batches.append(cut(batch, one, micro.num_samples))
        for index, micro in enumerate(micro_steps):
            micro.index = index
        micro_steps[0].begins_shard = True
        micro_steps[-1].ends_shard = micro_steps[-1].is_last = True
        return dataclasses.replace(plan, micro_steps=micro_steps), batches
