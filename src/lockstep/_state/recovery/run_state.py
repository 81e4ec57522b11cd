"""The state of a run: all that its checkpoints contain, and that must be the same on all its
ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep._base.errors import ConfigError, ModelError
from lockstep._data.loader import PreparedLoader
from lockstep._prepare.registry import adapter_of, registered_adapter
from lockstep._prepare.state_adapters import ATTRIBUTES, ModelAdapter, StateAdapter, Weights
from lockstep._prepare.structure import named_tensors
from lockstep._prepare.unprepared import is_local_grad
from lockstep._state.checkpoint.manifest import Object
from lockstep._state.checkpoint.parts import assign_tensors, part_name, state_part_name, weights_name
from lockstep._state.checkpoint.tree import take_apart
from lockstep._world.comm.dtensors import full_tensor, is_cut, to_local


class RunState:
    """The objects whose state belongs to the run. The set grows as the script prepares and
    registers objects.

    Args:
        devices: the devices of this process, to which restored tensors go.
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self.devices = devices
        self.objects: list[StateAdapter] = []
        """The objects passed to ``team.prepare``, except loaders, and the run's own loss scaler."""
        self.loaders: list[PreparedLoader] = []
        self.registered: dict[str, StateAdapter] = {}
        self.script_seed: int | None = None
        """The argument of a ``torch.manual_seed`` after ``join``; None: it was not called."""
        self.best: float | None = None
        """The best metric passed to ``Team.best``; None: there is none."""
        self.unsavable: dict[StateAdapter, dict[str, Any]] = {}
        """The attributes of each object, by name, that belong to its state but have types that a
        checkpoint does not support: as of the newest ``part``."""
        self.best_epoch = -1
        """The epoch of the best metric; -1: there is none."""

    def keep(self, target: Any) -> None:
        """Adds an object of ``team.prepare``."""
        adapter = adapter_of(target)
        number = 1 + sum(earlier.kind == adapter.kind for earlier in self.objects)
        adapter.name = adapter.kind if number == 1 else f"{adapter.kind}-{number}"
        self.objects.append(adapter)

    def register(self, name: str, target: Any, *, compare: bool = True) -> None:
        """Adds an object of ``team.register``. Raises the errors of ``registered_adapter``."""
        self.registered[name] = adapter = registered_adapter(name, target)
        adapter.is_compared = compare

    def describe(self) -> dict[str, Any]:
        """Returns the description for a manifest."""
        return {
            "objects": self.describe_objects(),
            "registered": list(self.registered),
            "loaders": [loader.describe_data() for loader in self.loaders],
        }

    def describe_objects(self) -> list[Object]:
        """Returns the description of the objects for a manifest."""
        return [_record(adapter) for adapter in self.objects]

    def _weights(self) -> dict[str, Weights]:
        """Returns the weights of all models, by the names that their files have if they are not
        cut."""
        named = ((adapter.name, adapter.weights()) for adapter in self.objects)
        return {weights_name(name): weights for name, weights in named if weights is not None}

    @property
    def is_cut(self) -> bool:
        """Whether any weights are cut over the ranks. The same on every rank."""
        return any(is_cut(tensor) for weights in self._weights().values() for tensor in weights.values())

    def weights(self, rank: int) -> dict[str, Weights]:
        """Returns the files with model weights that a rank writes: its own rows of tensors that are
        cut over the ranks, and on rank 0 the whole tensors. Every rank must call it."""
        return self._of_rank(self._weights(), rank)

    def _of_rank(self, of_files: Mapping[str, Weights], rank: int) -> dict[str, Weights]:
        files: dict[str, Weights] = {}
        for file, current in of_files.items():
            weights = _cut_or_whole(current)
            files[part_name(file, rank) if any(map(is_cut, weights.values())) else file] = {
                name: to_local(tensor) for name, tensor in weights.items() if is_cut(tensor) or rank == 0
            }
        return {name: part for name, part in files.items() if part}

    def part(self, rank: int, world_size: int) -> tuple[dict[str, Weights], dict[str, Any]]:
        """Returns the files of a checkpoint that a rank writes, with their tensors, and the JSON
        value of ``state.json``, which is the same on every rank. Every rank must call it.

        Each rank writes its own rows of tensors that are cut over the ranks. Rank 0 writes whole
        weights, and state that is not compared. The other whole tensors are the same on every rank,
        so each goes to the rank with the least to write."""
        tensors: dict[str, Tensor] = {}

        def apart(tree: Any, name: str) -> Any:
            value, parts = take_apart(tree, name, self.devices)
            tensors.update(_cut_or_whole(parts))
            return value

        of_files, objects = dict[str, Weights](), []
        for adapter in self.objects:
            weights, tree = self._whole(adapter)
            objects.append(apart(tree, adapter.name))
            if weights is not None:
                of_files[weights_name(adapter.name)] = weights
        state = {
            "objects": objects,
            "loaders": [apart(loader.state(), f"loader-{number}") for number, loader in enumerate(self.loaders, 1)],
            "registered": apart({name: self._whole(adapter)[1] for name, adapter in self.registered.items()}, "registered"),
            "best": apart(self.best, "best"),
            "best_epoch": self.best_epoch,
        }
        files = self._of_rank(of_files, rank)
        # State that may differ between ranks has no agreed sizes. The ranks would compute different
        # assignments, so that a tensor is written twice or never.
        differing = tuple(f"registered.{name}." for name, adapter in self.registered.items() if not adapter.is_compared)
        of_rank_0 = {name for name in tensors if f".{ATTRIBUTES}." in name or f"{name}.".startswith(differing)}
        held = [0] * world_size
        held[0] = sum(tensor.nbytes for each in of_files.values() for tensor in each.values() if not is_cut(tensor))
        sizes = {name: t.nbytes for name, t in tensors.items() if not is_cut(t) and name not in of_rank_0}
        mine = {*assign_tensors(sizes, held)[rank], *(of_rank_0 if rank == 0 else ())}
        files[state_part_name(rank)] = {
            name: to_local(tensor) for name, tensor in tensors.items() if is_cut(tensor) or name in mine
        }
        return {name: part for name, part in files.items() if part}, state

    def _whole(self, adapter: StateAdapter) -> tuple[Weights | None, Any]:
        """Returns a model's weights (None: it is none), and the part of the rest of an object's
        state that a checkpoint supports."""
        _check_gradients(adapter)
        weights, state = adapter.whole()
        # A trial per attribute: one unsupported attribute must not lose the others.
        saved, refused = dict[str, Any](), dict[str, Any]()
        for name, value in adapter.attributes().items():
            try:
                take_apart(value, name)
            except ConfigError:
                refused[name] = value
            else:
                saved[name] = value
        self.unsavable[adapter] = refused
        return weights, {**state, ATTRIBUTES: saved} if saved else state

    def check_gradients(self) -> None:
        """Checks that no model has got a parameter since it was prepared.

        Raises:
            ModelError: one has, with a gradient of this process.
        """
        for adapter in self.objects:
            _check_gradients(adapter)

    def compared(self) -> Iterator[tuple[str, str, Tensor | Any]]:
        """Yields the object, the part of its state, and the value of all that must be the same on
        all ranks. A value is a tensor, or a tree of plain values and tensors."""
        for adapter in self.objects:
            yield from ((adapter.name, part, value) for part, value in adapter.compared())
        for name, adapter in self.registered.items():
            if adapter.is_compared:
                yield from ((f"the registered {name!r}", part, value) for part, value in adapter.compared())
        for number, loader in enumerate(self.loaders, 1):
            digest = loader.compared()
            if digest is not None:
                yield f"loader {number}", "the state of the samplers", digest

    def saved_ids(self) -> set[int]:
        """Returns the ids of the generators, and other objects of samplers, that checkpoints
        contain."""
        registered = {id(adapter.target) for adapter in self.registered.values()}
        return registered.union(*(loader.held for loader in self.loaders))


def _cut_or_whole(tensors: Weights) -> Weights:
    """Gathers tensors that are cut in another way than along the first dimension. Every rank must
    call it."""
    return {name: tensor if is_cut(tensor) else full_tensor(tensor) for name, tensor in tensors.items()}


def _check_gradients(adapter: StateAdapter) -> None:
    if not isinstance(adapter, ModelAdapter):
        return
    for name, parameter in named_tensors(adapter.target)[0].items():
        if is_local_grad(parameter.grad):
            raise ModelError(
                f"{name!r} was put into {adapter.name} ({type(adapter.target).__name__}) after team.prepare() and received a "
                "gradient inside batch.shards, so each process would train its own copy. Change models before team.prepare().",
                code="parameter-added-late",
            )


def _record(adapter: StateAdapter) -> Object:
    record: Object = {
        "kind": adapter.kind,
        "name": adapter.name,
        "type": type(adapter.target).__name__,
        "lines": adapter.describe(),
        "options": {key: _as_text(value) for key, value in adapter.options_at_birth.items()},
    }
    if adapter.kind in ("model", "average"):
        record["file"] = weights_name(adapter.name)
    return record


def _as_text(value: Any) -> str:
    if isinstance(value, (set, frozenset)):  # whose order differs between processes
        return f"{type(value).__name__}({sorted(map(repr, value))})"
    return repr(value)
