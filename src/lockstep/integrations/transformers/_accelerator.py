"""accelerate's ``Accelerator`` for a process that finds itself alone, although it is one of
several.

Each process runs the host's whole program, on data that is the same everywhere, so what other
processes have is never asked for: gathering gives back what it is given. Only inside
``batch.shards`` do processes differ, and there they call ``backward``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import override

from lockstep._base.errors import UsageError
from lockstep._joining.team import Team


class LogicalAccelerator(Accelerator):
    """Stands for the accelerator that the host has made, and whose state it shares.

    Args:
        made: the host's.
        team: the run.
    """

    def __init__(self, made: Accelerator, team: Team) -> None:
        self.__dict__ = made.__dict__
        self._team = team
        self.weight: Tensor | None = None
        """The running shard's weight in the gradient of the global batch; None: its number of
        samples."""
        self.losses: Tensor | None = None
        """What the next gathering gives: the loss of an evaluation batch, once for each of its
        samples. The host gathers the losses of a batch first, and repeats them by the size of full
        batches. None: what is given."""
        self._last_norm: Tensor | None = None

    @override
    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        """Models, optimizers and schedules join the run. Loaders are returned as they are: what
        becomes of one depends on who iterates it."""
        prepared = tuple(
            self._team.prepare(each) if isinstance(each, (nn.Module, Optimizer, LRScheduler)) else each for each in objects
        )
        return prepared[0] if len(prepared) == 1 else prepared

    @override
    def prepare_model(self, model: Any, device_placement: Any = None, evaluation_mode: bool = False) -> Any:
        return self._team.prepare(model)

    @override
    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """``team.backward``, inside ``batch.shards``."""
        if kwargs:
            raise UsageError(
                f"accelerator.backward(loss, {', '.join(kwargs)}=...): only the loss reaches team.backward, so these would be "
                "ignored. Leave them out."
            )
        self._team.backward(loss, weight=self.weight)

    @override
    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2) -> Tensor:
        self._last_norm = self._team.clip_grad_norm_(parameters, max_norm, norm_type)
        return self._last_norm

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the gradients of a scaled loss have overflowed, so that the step was left out by
        all ranks together."""
        is_scaled = self._team.config.precision in ("16-mixed", "16-master")
        return is_scaled and self._last_norm is not None and not bool(torch.isfinite(self._last_norm))

    @override
    def gather(self, tensor: Any) -> Any:
        return tensor

    @override
    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        return tensor

    @override
    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        return tensor

    @override
    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """What is given, which is that of the whole batch already; but see ``losses``."""
        losses, self.losses = self.losses, None
        return input_data if losses is None else losses

    @override
    def unwrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return super().unwrap_model(self._team.unwrap(model), *args, **kwargs)

    @override
    def wait_for_everyone(self) -> None:
        self._team.barrier()

    @override
    def free_memory(self, *objects: Any) -> Any:
        """Nothing: what is prepared belongs to the run until it ends."""
        return list(objects)
