"""Writes a process's trace during training, in the format of ``trace.lines``.

The recorder draws no random numbers and changes no tensors, so a traced run computes the same as an
untraced one (except at level ``gradient``, see ``diagnosis.first_gradient``). It is slow, since it
reads every weight in every step; with ``fsdp`` it gathers each, since a digest is that of the whole
tensor, whatever the cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from typing_extensions import override

from lockstep._base.digest import digest, squared_norm
from lockstep._base.stopping import Ended
from lockstep._data.torch_loader import length_of
from lockstep._listener import Listener, Stage
from lockstep._plan.shards import MicroBatch
from lockstep._tools.verify.trace.lines import TraceWriter, exact
from lockstep._tools.verify.trace.subjects import Subjects
from lockstep._world.comm.dtensors import full_tensor


class Recorder(Listener):
    """Writes the trace of one process.

    Args:
        writer: of the process's file.
        subjects: the prepared objects.
        until: the step after which to end the script; None: let it run to its end.
    """

    stage = Stage.LATE

    def __init__(self, writer: TraceWriter, subjects: Subjects, until: int | None) -> None:
        self._writer = writer
        self._subjects = subjects
        self._until = until
        self._hooked: set[Tensor] = set()
        self._num_loaders = 0
        self._position = {"epoch": 0, "pass": -1}
        self._step = 0
        self._phase = 0
        self._micro: MicroBatch | None = None
        self._shard: dict[str, Any] = {}
        self._shards: list[dict[str, Any]] = []
        """The lines of the current step, written when it ends: it may yet be discarded."""
        self._order: dict[str, None] = {}
        """The parameters in the order in which their gradients were computed in the current
        phase."""
        self._line: dict[str, Any] = {}
        """The line of the current step, so far."""
        self._in_pass = False
        self._has_layers = False
        """Whether the line about the models' layers is written."""
        self._is_over = False
        """Whether the last step to trace has been recorded."""

    @override
    def prepared_loader(self, batches: Iterable[Any]) -> None:
        self._num_loaders += 1
        length = length_of(getattr(batches, "dataset", batches))
        sampler = getattr(batches, "sampler", None)
        replacement = getattr(sampler, "replacement", None)
        if replacement is None and type(sampler).__module__ == "torch.utils.data.sampler":
            replacement = False  # PyTorch's own samplers say so if they draw with replacement
        self._writer.write(event="loader", loader=self._num_loaders, length=length, replacement=replacement)

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._stop_if_over()
        self._in_pass = True
        if self._position["pass"] < 0:
            self._writer.write(event="initial", **self._subjects.digests())
        self._position = {"epoch": epoch, "pass": self._position["pass"] + 1}

    @override
    def begin_step(self, step: int) -> None:
        self._step = step
        self.abandon_step()

    @override
    def begin_phase(self, phase: int) -> None:
        self._phase = phase
        self._order = {}

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        self._micro = micro
        self._shard = {"batches": [], "losses": [], "weights": [], "gradients": {}}
        self._subjects.hook_gradients(self._hooked, self._note_gradient)

    @override
    def received(self, micro: MicroBatch, data: Any) -> None:
        samples = [plain(sample) for sample in micro.samples]
        self._shard["batches"].append({"samples": samples, "content": digest(data)})

    def _note_gradient(self, name: str, gradient: Tensor) -> None:
        if self._micro is not None:
            noted, new = self._shard["gradients"], digest(gradient)
            # A second backward call of the shard: both count, in their order.
            noted[name] = digest([noted[name], new]) if name in noted else new
            self._order[name] = None

    @override
    def before_backward(self, loss: Tensor, weight: float | Tensor | None) -> None:
        if not self._has_layers:
            self._has_layers = True
            self._writer.write(event="layers", **self._subjects.layers())
        self._shard["losses"].append(exact(loss.item()))
        self._shard["weights"].append(None if weight is None else exact(float(weight)))

    @override
    def end_shard(self) -> None:
        micro, self._micro = self._micro, None
        if micro is not None:
            position = {**self._position, "step": self._step, "phase": self._phase, "part": micro.part, "shard": micro.shard}
            self._shards.append({**position, **self._shard})

    @override
    def end_phase(self, phase: int) -> None:
        digests, squares = dict[str, str](), list[float]()
        for name, gradient in self._subjects.gradients().items():
            whole = full_tensor(gradient)
            digests[name] = digest(whole)
            squares.append(squared_norm(whole))
        # In the order of the backward pass, so that the first name that differs is the parameter in
        # which the difference arose, and not one that it has spread to.
        order = [name for name in self._order if name in digests]
        order += [name for name in digests if name not in self._order]
        self._line["gradients"].append({name: digests[name] for name in order})
        self._line["norms"].append(exact(math.sqrt(math.fsum(squares))))

    @override
    def abandon_step(self) -> None:
        self._micro = None
        self._shards, self._line = [], {"gradients": [], "norms": []}

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        for line in self._shards:
            self._writer.write(event="shard", **line)
        self._writer.write(
            event="step",
            **self._position,
            step=step,
            num_samples=num_samples,
            **self._line,
            **self._subjects.digests(),
        )
        self.abandon_step()
        self._is_over = self._until is not None and step >= self._until

    @override
    def agreed(self, step: int) -> None:
        # otherwise the loop was left in the last step, and the script may be ending
        if self._in_pass:
            self._stop_if_over()

    def _stop_if_over(self) -> None:
        """End the script normally after the last step to trace. All ranks call this after the same
        step."""
        if self._is_over:
            raise Ended

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        self._in_pass = False

    @override
    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        numbers = {name: exact(value) for name, value in values.items()}
        self._writer.write(event="evaluation", epoch=self._position["epoch"], step=step, values=numbers)

    @override
    def end_run(self, step: int, *, failed: bool) -> None:
        if not failed:
            self._writer.write(event="end", step=step, **self._subjects.digests())
        self._writer.close()


def plain(sample: Any) -> Any:
    """The identity of a sample, as a JSON value."""
    if isinstance(sample, (bool, int, str)):
        return sample
    if isinstance(sample, Tensor) or hasattr(sample, "__index__"):
        return int(sample)
    return [plain(part) for part in sample] if isinstance(sample, (list, tuple)) else repr(sample)
