"""accelerate's ``Accelerator`` for Trainer, which sees a single process on every rank.

Every rank runs Trainer's whole program, and all values outside the shard loop are equal on all
ranks. So a call that gathers from other processes returns its argument. Ranks differ only inside
``batch.shards``, where Trainer calls ``backward``."""

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
    """A replacement for the accelerator that Trainer created, whose state it shares.

    Args:
        made: Trainer's accelerator.
        team: the team of this process.
    """

    def __init__(self, made: Accelerator, team: Team) -> None:
        # Shared, not copied: Trainer and its callbacks keep references to the first object.
        self.__dict__ = made.__dict__
        self._team = team
        self.weight: Tensor | None = None
        """The running shard's weight in the gradient of the global batch; None: its number of
        samples."""
        self.losses: Tensor | None = None
        """The result of the next ``gather_for_metrics``: the loss of an evaluation batch, once per
        sample; None: its argument. Trainer gathers the loss of a batch first, repeated by the size
        of a full batch, which would give a smaller last batch too much weight."""
        self._last_norm: Tensor | None = None

    @override
    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        """Prepares models, optimizers and schedules. Returns loaders unchanged, since training and
        evaluation prepare them in different ways."""
        prepared = tuple(
            self._team.prepare(each) if isinstance(each, (nn.Module, Optimizer, LRScheduler)) else each for each in objects
        )
        return prepared[0] if len(prepared) == 1 else prepared

    @override
    def prepare_model(self, model: Any, device_placement: Any = None, evaluation_mode: bool = False) -> Any:
        return self._team.prepare(model)

    @override
    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Calls ``team.backward`` with the shard's weight, inside ``batch.shards``."""
        if kwargs:
            raise UsageError(
                f"accelerator.backward(loss, {', '.join(kwargs)}=...): only the loss is supported; other arguments would be "
                "ignored. Remove them.",
                code="backward-arguments",
            )
        self._team.backward(loss, weight=self.weight)

    @override
    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2) -> Tensor:
        self._last_norm = self._team.clip_grad_norm_(parameters, max_norm, norm_type)
        return self._last_norm

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether gradients of a scaled loss overflowed, so that all ranks skipped the step."""
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
        """Returns ``losses``, if they are set, and otherwise the argument, which already covers the
        global batch."""
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
        """Does nothing: prepared objects belong to the run until it ends."""
        return list(objects)
