"""Communication of ``fully_shard`` that measures how long this rank waits in it for the others.

On a CPU a rank waits in these collectives until all have called them. On a GPU they run on a
stream, and no time passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep._base.errors import PeerError
from lockstep._sync.units import SAME_BLOCKS
from lockstep._world.comm.collectives import all_gather_flat
from lockstep._world.comm.waiter import has_timed_out


class Waited:
    """The seconds for which this rank has waited in collectives."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def take(self) -> float:
        """Returns the seconds since the last call of this method."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def call(self, collective: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Calls a collective, and adds the time that it takes.

        Raises:
            PeerError: a rank did not take part within the timeout.
        """
        began_s = time.perf_counter()
        try:
            return collective(*args, **options)
        except RuntimeError as error:
            if not has_timed_out(error):
                raise
            raise PeerError(
                f"timed out: another rank did not take part in a forward or backward pass ({error}). It may be stuck (for "
                f"example in data loading), call the model less often, or run different parts of it. {SAME_BLOCKS}",
                code="pass-timeout",
            ) from error
        finally:
            self.seconds += time.perf_counter() - began_s


class TimedAllGather:
    """The all-gather for ``FSDPModule.set_custom_all_gather``, with its time."""

    def __init__(self, waited: Waited) -> None:
        self._waited = waited

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocates a buffer as PyTorch's own all-gather does."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gathers the parts of parameters. Every rank must call it."""
        work: dist.Work | None = self._waited.call(
            all_gather_flat, output_tensor, input_tensor, group=group, async_op=async_op
        )
        return work
