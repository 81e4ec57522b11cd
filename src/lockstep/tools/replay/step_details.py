"""What a replay records of its steps in addition to their trace: norms by parameter, learning rates, and the batches.

Each rank writes ``trace/shown-<r>.jsonl`` in the replay's directory: JSON lines with ``event`` (their kind) and these fields:

===========  ===========================================================================================================
``shard``    ``step``, ``phase``, ``shard``, ``part``; ``norms`` by parameter, of the gradient of this shard alone
``phase``    ``step``, ``phase``; ``norms`` by parameter, of the gradient after the exchange
``step``     ``step``; ``rates``: the learning rate of each group when its optimizer stepped
``model``    ``batch_norm``: names of layers that normalize over the samples of a shard
===========  ===========================================================================================================

Numbers are written as in a trace: ``float.hex()``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from lockstep.data.batches import map_tensors
from lockstep.listener import Listener, Stage
from lockstep.plan.shards import MicroStep
from lockstep.tools.replay.journal import norm_of
from lockstep.tools.verify.trace.lines import TraceWriter, exact
from lockstep.tools.verify.trace.subjects import Subjects

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class StepDetails(Listener):
    """Writes the lines of one process. Notified only of the steps to show.

    Args:
        writer: of the process's file.
        subjects: the prepared objects.
        shard: the shard to show; None: all.
        out: the file for the batches; None: they are not saved.
    """

    stage = Stage.LATE

    def __init__(self, writer: TraceWriter, subjects: Subjects, shard: int | None, out: Path | None) -> None:
        self._writer = writer
        self._subjects = subjects
        self._shard = shard
        self._out = out
        self._step = self._phase = 0
        self._micro: MicroStep | None = None
        self._hooked: set[Tensor] = set()
        self._gradients: dict[str, Tensor] = {}
        """Of the current micro-step, by parameter."""
        self._rates: dict[str, str] = {}
        self._optimizers: list[Optimizer] = []
        self._batches: list[dict[str, Any]] = []
        self._has_described = False

    @override
    def prepared(self, item: Any) -> None:
        if isinstance(item, Optimizer):
            self._optimizers.append(item)

    @override
    def begin_step(self, step: int) -> None:
        self._step = step
        self._rates = {}
        if not self._has_described:
            self._has_described = True
            self._writer.write(event="model", batch_norm=batch_norm_in(self._subjects))

    @override
    def begin_phase(self, phase: int) -> None:
        self._phase = phase

    @override
    def begin_shard(self, micro: MicroStep) -> None:
        self._micro, self._gradients = micro, {}
        self._subjects.hook_gradients(self._hooked, self._note)

    def _note(self, name: str, gradient: Tensor) -> None:
        if self._micro is not None:
            known = self._gradients.get(name)
            self._gradients[name] = gradient.detach().clone() if known is None else known + gradient

    @override
    def received(self, micro: MicroStep, data: Any) -> None:
        if self._out is not None and self._phase == 0 and self._shard in (None, micro.shard):
            position = {"step": self._step, "shard": micro.shard, "part": micro.part}
            kept = map_tensors(lambda tensor: tensor.detach().cpu().clone(), data)
            self._batches.append({**position, "samples": list(micro.samples), "batch": kept})

    @override
    def end_shard(self) -> None:
        micro, self._micro = self._micro, None
        if micro is not None and self._shard in (None, micro.shard):
            self._writer.write(
                event="shard",
                step=self._step,
                phase=self._phase,
                shard=micro.shard,
                part=micro.part,
                norms={name: exact(norm_of([gradient])) for name, gradient in self._gradients.items()},
            )
        self._gradients = {}

    @override
    def end_phase(self, phase: int) -> None:
        norms = {name: exact(norm_of([gradient])) for name, gradient in self._subjects.gradients().items()}
        self._writer.write(event="phase", step=self._step, phase=phase, norms=norms)

    @override
    def before_optimizer(self, optimizer: Optimizer) -> None:
        known = [number for number, item in enumerate(self._optimizers) if item is optimizer]
        name = f"optimizer {known[0] + 1}" if known and len(self._optimizers) > 1 else "optimizer"
        for number, group in enumerate(optimizer.param_groups):
            key = name if len(optimizer.param_groups) == 1 else f"{name}, group {number + 1}"
            self._rates[key] = exact(float(group.get("lr", 0.0)))

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        self._writer.write(event="step", step=step, rates=self._rates)

    @override
    def end_run(self, step: int, *, failed: bool) -> None:
        if self._out is not None and self._batches:
            torch.save(self._batches, self._out)
        self._writer.close()


def batch_norm_in(subjects: Subjects) -> list[str]:
    """The names of layers that normalize over the samples of a shard, so that samples cannot be computed alone."""
    return [name for name, module in subjects.modules() if isinstance(module, _BATCH_NORMS) and module.training]
