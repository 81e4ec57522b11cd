"""What no shard may change: weights, whether they learn, and the options of optimizers."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lockstep.digest import bit_sums
from lockstep.errors import ModelError, UsageError
from lockstep.sync.buffers import version


class ShardWeights:
    """Finds changes inside ``batch.shards``. Each process runs only its own shards, so the others would not have them.

    Args:
        parameters: of all prepared models, with their names.
        optimizers: the prepared ones.
        schedules: the prepared ones.
    """

    def __init__(
        self, parameters: dict[nn.Parameter, str], optimizers: list[Optimizer], schedules: list[LRScheduler]
    ) -> None:
        self._parameters = parameters
        self._optimizers = optimizers
        self._schedules = schedules
        self._before: Any = None
        self._before_again: Any = None

    def begin_phase(self) -> None:
        """Record what no shard may change."""
        self._before = self._snapshot()

    def _snapshot(self) -> tuple[list[int], list[bool], list[Any]]:
        return (
            list(map(version, self._parameters)),
            [parameter.requires_grad for parameter in self._parameters],
            [group["lr"] for optimizer in self._optimizers for group in optimizer.param_groups]
            + [progress_of(schedule) for schedule in self._schedules],
        )

    def check_unchanged(self, step: int) -> None:
        """Check that the shards of this rank have not changed what must be equal on all ranks.

        Raises:
            ModelError: parameters were changed, frozen or unfrozen.
            UsageError: a learning rate was changed.
        """
        versions, learning, rates = self._snapshot()
        if (versions, learning, rates) == self._before:
            return
        for change, values, old_values in (
            ("changed", versions, self._before[0]),
            ("frozen or unfrozen (requires_grad)", learning, self._before[1]),
        ):
            for name, value, old_value in zip(self._parameters.values(), values, old_values, strict=True):
                if value != old_value:
                    raise ModelError(
                        f"parameter {name!r} was {change} inside batch.shards in step {step}: each process runs only its own "
                        "shards, so the weights would differ from rank to rank, and from one number of processes to another. "
                        "Do that once a step, after the loop over batch.shards. (Embedding(max_norm=...) changes its weight "
                        "in the forward pass: leave max_norm out, and clip the rows after that loop.)"
                    )
        raise UsageError(
            f"schedule.step() inside batch.shards in step {step} (or a learning rate that was changed there by hand): it "
            "would act once a shard. Call it once a step, after the loop over batch.shards."
        )

    def begin_again(self) -> None:
        """Record what must not change while an audit computes a shard once more, with a single shard too."""
        self._before_again = self._contents()

    def _contents(self) -> tuple[list[int], list[Any]]:
        # Changes through ``.data`` have no version. This reads all weights, which is little beside a shard.
        return bit_sums(list(self._parameters)), self._snapshot()[2]

    def check_again(self, step: int) -> None:
        """Check that computing a shard once more has changed nothing.

        Raises:
            UsageError: weights or a learning rate were changed.
        """
        sums, rates = self._contents()
        if (sums, rates) == self._before_again:
            return
        pairs = zip(self._parameters.values(), sums, self._before_again[0], strict=True)
        what = next((f"parameter {name!r}" for name, now, before in pairs if now != before), "a learning rate")
        raise UsageError(
            f"{what} was changed inside batch.shards in step {step}, in which an audit computes a shard once more: it would be "
            "changed twice. Do that once a step, after the loop over batch.shards, or leave --audit out. "
            "(Embedding(max_norm=...) changes its weight in the forward pass.)"
        )


def progress_of(schedule: LRScheduler) -> list[int]:
    """The step counts of a schedule and those inside it. (A ChainedScheduler has no count of its own.)"""
    return [getattr(item, "last_epoch", 0) for item in (schedule, *getattr(schedule, "_schedulers", ()))]
