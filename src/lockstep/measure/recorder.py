"""Writes a process's trace while it trains: see ``measure.trace`` for what is written.

The recorder only looks: it draws no random number, changes no tensor and sends nothing, so that a traced run computes what
the same run computes without (but for the level ``gradient``, see ``measure.first_gradient``). It is slow all the same: every
weight is read in every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from lockstep.digest import digest, squared_norm
from lockstep.listener import Listener
from lockstep.measure.first_gradient import FirstGradient
from lockstep.measure.trace import TraceWriter, exact
from lockstep.measure.witness import Witness
from lockstep.plan.shards import MicroStep


class Recorder(Listener):
    """The trace of one process. It hears of the end of a phase when the gradients have met and are the script's again.

    Args:
        run_dir: the run's directory.
        rank: of this process.
        level: ``steps``, ``gradient``, ``calls`` or ``kernels``, as ``RunConfig.trace`` has it.
        until: the step after which the script is to end; None: its own end.
    """

    def __init__(self, run_dir: Path, rank: int, level: str, until: int | None) -> None:
        self._writer = TraceWriter(run_dir, f"rank-{rank}")
        self._until = until
        self._level = level
        self._witness = Witness(run_dir, rank, level) if level in ("calls", "kernels") else None
        self._first = FirstGradient(self._writer) if level == "gradient" else None
        self._models: list[tuple[str, nn.Module]] = []
        self._averages: list[tuple[str, nn.Module]] = []
        self._optimizers: list[tuple[str, Optimizer]] = []
        self._others: list[tuple[str, Any]] = []
        self._names: dict[Tensor, str] = {}
        self._hooked: set[Tensor] = set()
        self._num_loaders = 0
        self._position = {"epoch": 0, "pass": -1}
        self._step = 0
        self._phase = 0
        self._micro: MicroStep | None = None
        self._shard: dict[str, Any] = {}
        self._shards: list[dict[str, Any]] = []
        """The lines of the step at hand: written when it ends, as it may yet be discarded."""
        self._order: dict[str, None] = {}
        """The parameters in the order in which the phase at hand computed their gradients."""
        self._gradients: list[dict[str, str]] = []
        self._norms: list[str] = []
        self._in_pass = False
        self._is_over = False
        """Whether the step after which the script is to end has been recorded."""

    def start(self, **fields: Any) -> None:
        """Write the first line."""
        self._writer.write(event="start", level=self._level, **fields)

    # What takes part

    def watch_team(self, team: Any) -> None:
        """Notice what the script asks its team."""
        if self._witness is not None:
            self._witness.watch_team(team)

    def watch(self, thing: Any) -> None:
        """Record a prepared model, average, optimizer or schedule from now on."""
        kinds: list[tuple[type, list[Any]]] = [
            (AveragedModel, self._averages),
            (nn.Module, self._models),
            (Optimizer, self._optimizers),
            (object, self._others),
        ]
        known = next(known for kind, known in kinds if isinstance(thing, kind))
        # Nearly always there is one of a kind, and plain names read best.
        plain = known is self._models or known is self._optimizers
        prefix = "" if plain and not known else f"{type(thing).__name__} {len(known) + 1}: "
        known.append((prefix, thing))
        if known is self._models:
            self._names.update((tensor, prefix + name) for name, tensor in thing.named_parameters())
            if self._witness is not None:
                self._witness.watch_model(prefix, thing)
            if self._first is not None:
                self._first.watch(thing)

    def watch_loader(self, batches: Iterable[Any], length: int | None) -> None:
        """Note what a prepared loader draws from: samples, or ready batches, ``length`` of them if that is known."""
        self._num_loaders += 1
        dataset = getattr(batches, "dataset", batches)
        sampler = getattr(batches, "sampler", None)
        replacement = getattr(sampler, "replacement", None)
        if replacement is None and type(sampler).__module__ == "torch.utils.data.sampler":
            replacement = False  # none of PyTorch's draws twice unless it says so
        self._writer.write(event="loader", loader=self._num_loaders, length=length, replacement=replacement)
        if self._witness is not None:
            self._witness.watch_dataset(dataset)
        if self._first is not None:
            self._first.watch_dataset(dataset)

    # The loop

    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        """See Listener."""
        self._stop_if_over()
        self._in_pass = True
        if self._position["pass"] < 0:
            self._writer.write(event="initial", **self._all_digests())
        self._position = {"epoch": epoch, "pass": self._position["pass"] + 1}
        if self._witness is not None:
            self._witness.begin_pass()

    def begin_step(self, step: int) -> None:
        """See Listener."""
        self._step = step
        self._forget()
        if self._witness is not None:
            self._witness.begin_step(step)

    def begin_phase(self, phase: int) -> None:
        """See Listener."""
        self._phase = phase
        self._order = {}

    def begin_shard(self, micro: MicroStep) -> None:
        """See Listener."""
        self._micro = micro
        self._shard = {"batches": [], "losses": [], "weights": [], "threads": None, "gradients": {}}
        for parameter, name in self._names.items():
            if parameter.requires_grad and parameter not in self._hooked:
                self._hooked.add(parameter)
                parameter.register_hook(_Noter(self, name))  # type: ignore[no-untyped-call]
        if self._witness is not None:
            self._witness.begin_shard()

    def received(self, micro: MicroStep, data: Any) -> None:
        """See Listener."""
        samples = [_plain(sample) for sample in micro.samples]
        self._shard["batches"].append({"samples": samples, "content": digest(data)})
        if self._first is not None:
            self._first.received(micro.num_samples, data)

    def note_gradient(self, name: str, gradient: Tensor) -> None:
        """A shard's gradient of a parameter has been computed."""
        if self._micro is not None:
            noted, new = self._shard["gradients"], digest(gradient)
            noted[name] = digest([noted[name], new]) if name in noted else new  # a second backward call
            self._order[name] = None

    def before_backward(self, loss: Tensor, weight: float | None) -> None:
        """See Listener."""
        self._shard["losses"].append(exact(loss.item()))
        self._shard["weights"].append(None if weight is None else exact(weight))
        self._shard["threads"] = torch.get_num_threads()

    def end_shard(self) -> None:
        """See Listener."""
        micro, self._micro = self._micro, None
        if micro is None:
            return
        if self._first is not None:
            self._first.end_shard()
        layers = {} if self._witness is None else {"layers": self._witness.end_shard()}
        position = {**self._position, "step": self._step, "phase": self._phase, "part": micro.part, "shard": micro.shard}
        self._shards.append({**position, **self._shard, **layers})

    def end_phase(self, phase: int) -> None:
        """See Listener."""
        found = {name: p.grad for p, name in self._names.items() if p.grad is not None}
        order = [name for name in self._order if name in found]  # as the backward pass went
        order += [name for name in found if name not in self._order]
        self._gradients.append({name: digest(found[name]) for name in order})
        if self._first is not None:
            self._first.end_phase(found)
        self._norms.append(exact(math.sqrt(math.fsum(squared_norm(gradient) for gradient in found.values()))))

    def drop(self) -> None:
        """See Listener."""
        self._forget()
        if self._witness is not None:
            self._witness.end_shard()

    def _forget(self) -> None:
        self._micro = None
        self._gradients, self._norms, self._shards = [], [], []

    def end_step(self, step: int, num_samples: int) -> None:
        """See Listener."""
        for line in self._shards:
            self._writer.write(event="shard", **line)
        self._writer.write(
            event="step",
            **self._position,
            step=step,
            num_samples=num_samples,
            gradients=self._gradients,
            norms=self._norms,
            **self._all_digests(),
        )
        self._forget()
        self._is_over = self._until is not None and step >= self._until

    def tick(self, step: int) -> None:
        """See Listener."""
        if self._in_pass:  # if the loop was left in the last step, the script may be at its end already
            self._stop_if_over()

    def _stop_if_over(self) -> None:
        """End the script in order after the last step that is to be traced. All ranks come here after the same step."""
        if self._is_over:
            raise SystemExit(0)

    def end_pass(self, step: int, *, exhausted: bool) -> None:
        """See Listener."""
        self._in_pass = False

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """An evaluation has its results."""
        numbers = {name: exact(value) for name, value in values.items()}
        self._writer.write(event="evaluation", epoch=self._position["epoch"], step=step, values=numbers)

    def close(self, step: int, *, failed: bool) -> None:
        """The script is over."""
        if self._witness is not None:
            self._witness.close()
        if not failed:
            self._writer.write(event="end", step=step)
        self._writer.close()

    # Digests

    def _all_digests(self) -> dict[str, dict[str, str]]:
        weights: dict[str, str] = {}
        buffers: dict[str, str] = {}
        state: dict[str, str] = {}
        for prefix, model in self._models:
            weights.update((prefix + name, digest(tensor)) for name, tensor in model.named_parameters())
            buffers.update((prefix + name, digest(tensor)) for name, tensor in model.named_buffers())
        for prefix, optimizer in self._optimizers:
            state.update((prefix + name, _value(value)) for name, value in self._optimizer_state(optimizer))
        for prefix, average in self._averages:
            tensors = [*average.named_parameters(), *average.named_buffers()]
            state.update((prefix + name, digest(tensor)) for name, tensor in tensors)
        for prefix, other in self._others:
            state.update((prefix + name, _value(value)) for name, value in other.state_dict().items())
        return {"weights": weights, "buffers": buffers, "state": state}

    def _optimizer_state(self, optimizer: Optimizer) -> Iterable[tuple[str, Any]]:
        for number, group in enumerate(optimizer.param_groups):
            for option, value in group.items():
                if option != "params":
                    yield f"{option} of group {number}", value
            for position, parameter in enumerate(group["params"]):
                name = self._names.get(parameter, f"parameter {position} of group {number}")
                for slot, value in optimizer.state.get(parameter, {}).items():
                    yield f"{slot} of {name}", value


class _Noter:
    """A hook on a parameter: called with each of its gradients, before anything else has seen it."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def __call__(self, gradient: Tensor) -> None:
        self._recorder.note_gradient(self._name, gradient)


def _value(value: Any) -> str:
    """A plain number as it is, after an equals sign, so that a person can read it; the digest of anything else."""
    return f"={value!r}" if value is None or isinstance(value, (bool, int, float)) else digest(value)


def _plain(sample: Any) -> Any:
    """The identity of a sample, as JSON has it."""
    if isinstance(sample, (bool, int, str)):
        return sample
    if isinstance(sample, Tensor) or hasattr(sample, "__index__"):
        return int(sample)
    return [_plain(part) for part in sample] if isinstance(sample, (list, tuple)) else repr(sample)
