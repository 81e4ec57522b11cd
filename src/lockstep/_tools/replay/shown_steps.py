"""The trace of a replay's steps, with what is shown of them: norms by parameter, learning rates,
and the batches.

These fields are added to the lines of the trace, as numbers of ``float.hex()``:

==========  ============================================================================================================
``shard``   ``norms``, by parameter: of the gradient of this shard alone
``step``    ``norms_by_name``, for each phase by parameter: of the gradient after the exchange; ``rates``: the learning rate of
            each group when its optimizer stepped
==========  ============================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lockstep._data.batches import map_tensors
from lockstep._listener import EVENTS, Listener
from lockstep._plan.shards import MicroBatch
from lockstep._tools.replay.journal import norm_of
from lockstep._tools.verify.trace.lines import TraceWriter, exact
from lockstep._tools.verify.trace.recorder import Recorder
from lockstep._tools.verify.trace.subjects import Subjects

_ALWAYS = ("prepared", "prepared_loader", "made_loader", "begin_pass", "end_pass", "end_run")
"""Events that do not belong to one step."""


class ShownSteps(Recorder):
    """Records the steps to show, in one process. Notified only of these.

    Args:
        writer: of the process's file.
        subjects: the prepared objects.
        until: the last step, after which the script ends.
        shard: the shard to show; None: all.
        out: the file for the batches; None: they are not saved.
    """

    def __init__(self, writer: TraceWriter, subjects: Subjects, until: int, shard: int | None, out: Path | None) -> None:
        super().__init__(writer, subjects, until)
        self._shown = shard
        self._out = out
        self._own: dict[str, Tensor] = {}
        """The gradients of the current micro-batch, by parameter."""
        self._optimizers: list[Optimizer] = []
        self._batches: list[dict[str, Any]] = []

    @override
    def prepared(self, item: Any) -> None:
        if isinstance(item, Optimizer):
            self._optimizers.append(item)

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        super().begin_shard(micro)
        self._own = {}

    def _note_gradient(self, name: str, gradient: Tensor) -> None:
        super()._note_gradient(name, gradient)
        if self._micro is not None and self._shown in (None, self._micro.shard):
            known = self._own.get(name)
            self._own[name] = gradient.detach().clone() if known is None else known + gradient

    @override
    def received(self, micro: MicroBatch, data: Any) -> None:
        super().received(micro, data)
        if self._out is not None and self._phase == 0 and self._shown in (None, micro.shard):
            position = {"step": self._step, "shard": micro.shard, "part": micro.part}
            kept = map_tensors(lambda tensor: tensor.detach().cpu().clone(), data)
            self._batches.append({**position, "samples": list(micro.samples), "batch": kept})

    @override
    def end_shard(self) -> None:
        self._shard["norms"] = _norms(self._own)
        super().end_shard()
        self._own = {}

    @override
    def end_phase(self, phase: int) -> None:
        super().end_phase(phase)
        self._line.setdefault("norms_by_name", []).append(_norms(self._subjects.gradients()))

    @override
    def before_optimizer(self, optimizer: Optimizer) -> None:
        known = [number for number, item in enumerate(self._optimizers) if item is optimizer]
        name = f"optimizer {known[0] + 1}" if known and len(self._optimizers) > 1 else "optimizer"
        for number, group in enumerate(optimizer.param_groups):
            key = name if len(optimizer.param_groups) == 1 else f"{name}, group {number + 1}"
            self._line.setdefault("rates", {})[key] = exact(float(group.get("lr", 0.0)))

    @override
    def end_run(self, step: int, *, failed: bool) -> None:
        super().end_run(step, failed=failed)
        if self._out is not None and self._batches:
            torch.save(self._batches, self._out)


def _norms(gradients: dict[str, Tensor]) -> dict[str, str]:
    return {name: exact(norm_of([gradient])) for name, gradient in gradients.items()}


class FromStep(Listener):
    """Notifies another listener of what happens from a step on, and of the events of the whole run.

    Args:
        listener: the other one.
        first: the step.
    """

    def __init__(self, listener: Listener, first: int) -> None:
        self._first = first
        self._begin_step = listener.begin_step
        self._has_begun = False
        self.stage = listener.stage
        for name in EVENTS:
            if name in _ALWAYS:
                setattr(self, name, getattr(listener, name))
            elif name != "begin_step":
                setattr(self, name, self._later(getattr(listener, name)))

    @override
    def begin_step(self, step: int) -> None:
        self._has_begun = self._has_begun or step >= self._first
        if self._has_begun:
            self._begin_step(step)

    def _later(self, method: Callable[..., None]) -> Callable[..., None]:
        def notify(*args: Any, **kwargs: Any) -> None:
            if self._has_begun:
                method(*args, **kwargs)

        return notify
