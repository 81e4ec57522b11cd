"""One process: its shards are all there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lockstep.sync.gradients import Gradients, check_total
from lockstep.sync.sharded import ShardedSync


class Single(ShardedSync):
    """The strategy ``single``. With one shard, a step is what the plain single-device loop does, to the bit.

    Args:
        num_shards: V of the run.
        accumulate: global batches of a step.
    """

    def __init__(self, num_shards: int, accumulate: int = 1) -> None:
        super().__init__(num_shards)
        self._is_plain = num_shards == 1 == accumulate

    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """See Sync."""
        return model if self._is_plain else super().attach(model)

    def backward(self, loss: Tensor, weight: float | None, **options: Any) -> None:
        """See Sync."""
        if self._is_plain:
            if weight == 0 and self._turn is not None:
                check_total(weight, self._turn.step)
            loss.backward(**options)  # type: ignore[no-untyped-call]
        else:
            super().backward(loss, weight, **options)

    def close(self) -> None:
        """See Sync: there is nothing to let go of."""

    def _replicate(self, model: nn.Module) -> Callable[..., Any]:
        return model

    def _start_agreeing(
        self, call: int, total: float | None, changed: list[bool]
    ) -> Callable[[], tuple[float | None, list[bool]]]:
        return lambda: (total, changed)

    def _backward_and_reduce(self, loss: Tensor, call: int, share: float, options: dict[str, Any]) -> Gradients:
        loss.backward(**options)  # type: ignore[no-untyped-call]
        self._sums.add(call, self._parameters, share)
        return self._sums.take(call)

    def _buffer_reduction(self) -> Callable[[Tensor], None] | None:
        return None
