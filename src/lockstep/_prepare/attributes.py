"""What an optimizer keeps in attributes, of which PyTorch's ``state_dict`` knows nothing: a count
of steps, a list of momenta.

An attribute that is what it was when the optimizer was prepared needs no saving: its constructor
makes it again, perhaps from an argument that has been changed. One that has changed since belongs
to the state. A class that overrides ``state_dict`` says itself what its state is, and is believed;
only what that seems to leave out is noted.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep._base.digest import bit_sum, digest
from lockstep._base.errors import MismatchError
from lockstep._base.trees import MAPPINGS, SEQUENCES, is_circular, mapped
from lockstep._base.versions import version
from lockstep._data.states import is_generator, put_state, take_state
from lockstep._world.comm.dtensors import distribute_like, is_dtensor

_PARAMETER, _GENERATOR = "lockstep: parameter", "lockstep: generator"
"""The first items of tuples that stand for a parameter of the optimizer, by its number, and for a
generator, with its state."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.ndarray, np.generic, set, frozenset)
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.Size)
_CODE = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type, functools.partial),
    # watched and saved in other ways
    *(Optimizer, nn.Module, torch.optim.lr_scheduler.LRScheduler),
)
"""Kinds of objects that are no state of an optimizer."""
_STRANGERS = {*sys.stdlib_module_names, "torch", "numpy", "lockstep"} - {"__main__"}
"""Packages of which an object that changes (a logger, a clock) is nothing that the script computes
with."""
_LARGE_BYTES = 1 << 26
_MOST_ITEMS = 1000
_LATER = ("_opt_called", "_step_count")
"""Attributes that schedules of PyTorch give to an optimizer."""


class Attributes:
    """Those of one optimizer, as they were when this was made, and are now."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._before = {name: _Snapshot(optimizer, value).kept() for name, value in self._own()}
        self._have_changed = set[str]()

    @property
    def _has_state_dict(self) -> bool:
        """Whether the class says itself what its state is."""
        return type(self._optimizer).state_dict is not Optimizer.state_dict or "state_dict" in vars(self._optimizer)

    def changed(self) -> dict[str, Any]:
        """Trees of what has changed, with tuples in the place of parameters and generators. What no
        checkpoint can hold is in them as it is."""
        return {} if self._has_state_dict else self._changed()

    def omitted(self) -> dict[str, Any]:
        """Where the class says itself what its state is: what has changed, and of which there are
        neither the name nor the values in what it says."""
        if not self._has_state_dict:
            return {}
        stated, changed = _Leaves(self._optimizer.state_dict()), self._changed()
        return {
            name: value for name, value in changed.items() if name.strip("_") not in stated.names and not stated.hold(value)
        }

    def restore(self, saved: Mapping[str, Any], shared: Mapping[int, Any]) -> None:
        """Put back what ``changed`` returned, in place where that can be.

        Args:
            shared: the tensors in the optimizer's own state, by the id of what each was restored
                from: attributes may be the same tensors.
        """
        restoring = _Restoring(self._optimizer, shared)
        attributes = vars(self._optimizer)
        for name, value in saved.items():
            attributes[name] = restoring.put(name, attributes.get(name), value)

    def _changed(self) -> dict[str, Any]:
        found = {}
        for name, value in self._own():
            if name not in self._have_changed:
                before, now = self._before.get(name), _Snapshot(self._optimizer, value)
                if before is not None and not now.differs(before):
                    continue
                # for good: what has changed back may have done so in part
                self._have_changed.add(name)
            found[name] = _coded(self._optimizer, value)
        return found

    def _own(self) -> list[tuple[str, Any]]:
        names = _names_of_pytorch()
        own = [(name, value) for name, value in vars(self._optimizer).items() if name not in names]
        return [(name, value) for name, value in own if not is_circular(value) and not is_code(value)]


@functools.cache
def _names_of_pytorch() -> set[str]:
    return {*vars(torch.optim.SGD([torch.zeros(1)])), *_LATER}


def is_code(value: Any) -> bool:
    """Whether a value is no state: a function, a model, or a container of nothing else."""
    if type(value) in SEQUENCES and value:
        return all(map(is_code, value))
    if type(value) in MAPPINGS and value:
        return all(map(is_code, value.values()))
    return isinstance(value, _CODE) or value is torch.default_generator


def _coded(optimizer: Optimizer, value: Any) -> Any:
    numbers = {
        id(parameter): n for n, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])
    }

    def code(leaf: Any) -> Any:
        if id(leaf) in numbers:
            return (_PARAMETER, numbers[id(leaf)])
        return (_GENERATOR, take_state(leaf)) if is_generator(leaf) else leaf

    return mapped(value, code)


class _Snapshot:
    """An attribute as it is at one moment, to be compared with a later one."""

    def __init__(self, optimizer: Optimizer, value: Any) -> None:
        self._tree = _coded(optimizer, value)
        self._tensors = [
            (id(leaf), 0 if leaf.is_inference() else version(leaf))
            for leaf in _leaves(self._tree)
            if isinstance(leaf, Tensor)
        ]
        """The ids of its tensors, and how often each has been written."""
        self._is_cut = any(map(is_dtensor, _leaves(self._tree)))
        self._content: str | None = None

    def kept(self) -> _Snapshot:
        """This look, which keeps nothing of the attribute alive, and does not change with it."""
        self._take_content()
        return self

    def differs(self, before: _Snapshot) -> bool:
        """Whether it has changed since a look that was kept."""
        # Tensors that are cut over the ranks have been made since: by a step.
        if self._is_cut or self._tensors != before._tensors:
            return True
        return self._take_content() != before._content  # a write through ``.data`` is not counted

    def _take_content(self) -> str:
        if self._content is None:
            self._content = "" if self._is_cut else digest(mapped(self._tree, functools.partial(_parts_of, depth=3), _key))
            self._tree = None
        return self._content


def _leaves(tree: Any) -> list[Any]:
    leaves: list[Any] = []
    mapped(tree, leaves.append, _key)
    return leaves


def _key(key: Any) -> Any:
    return key if isinstance(key, _PLAIN) else f"{type(key).__qualname__} {id(key)}"


def _parts_of(value: Any, depth: int) -> Any:
    """What of a value of any other kind may change and count: the numbers and tensors in an object
    of the script's."""
    kind = type(value)
    if isinstance(value, Tensor) and value.nbytes > _LARGE_BYTES:
        return int(bit_sum(value))  # ten times as fast, if blind to elements that change places
    if isinstance(value, (*_PLAIN, Tensor)):
        return value
    if isinstance(value, _PLAIN_OF_TORCH):
        return str(value)
    if not depth:
        return kind.__qualname__
    if kind in MAPPINGS or kind in SEQUENCES:
        # (An object may hold a whole data set.)
        return (
            len(value)
            if len(value) > _MOST_ITEMS or is_circular(value)
            else mapped(value, lambda leaf: _parts_of(leaf, depth - 1), _key)
        )
    if isinstance(value, _CODE) or kind.__module__.partition(".")[0] in _STRANGERS:
        return kind.__qualname__
    items = list(value.items() if isinstance(value, Mapping) else value) if isinstance(value, (Mapping, list, tuple)) else []
    parts = {"items": items, **getattr(value, "__dict__", {})}
    return {name: _parts_of(part, depth - 1) for name, part in parts.items()}


class _Restoring:
    """Restores the attributes of one optimizer."""

    def __init__(self, optimizer: Optimizer, shared: Mapping[int, Any]) -> None:
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._shared = shared
        self._done: dict[int, Any] = {}
        """What was restored, by the id of what was saved: one tensor may have several places."""
        self._taken = set[int]()

    def put(self, name: str, now: Any, then: Any) -> Any:
        """The value ``then`` in the place of ``now``: ``now`` itself, if it can take what is in
        it."""
        if isinstance(then, Tensor):
            if id(then) not in self._done:
                self._done[id(then)] = self._tensor(now, then)
            return self._done[id(then)]
        kind = type(then)
        if kind is tuple and then[:1] == (_PARAMETER,):
            return self._parameters[then[1]]
        if kind is tuple and then[:1] == (_GENERATOR,):
            return _put_generator(name, now, then[1])
        if kind in MAPPINGS:
            return self._mapping(name, now, then)
        return self._sequence(name, now, then) if kind in SEQUENCES else then

    def _mapping(self, name: str, now: Any, then: Any) -> Any:
        before = now if type(now) is type(then) else {}
        items = [(self.put(name, None, key), value) for key, value in then.items()]
        items = [(key, self.put(name, before.get(key), value)) for key, value in items]
        result = before if type(now) is type(then) else then
        result.clear()
        for key, value in items:  # (a Counter's ``update`` would add)
            result[key] = value
        return result

    def _sequence(self, name: str, now: Any, then: Any) -> Any:
        before = list(now) if type(now) is type(then) else []
        items = [self.put(name, before[i] if i < len(before) else None, value) for i, value in enumerate(then)]
        if isinstance(then, tuple):
            return tuple(items)
        is_same = type(now) is type(then) and not (isinstance(then, deque) and now.maxlen != then.maxlen)
        result = now if is_same else then
        result.clear()
        result.extend(items)
        return result

    def _tensor(self, now: Any, then: Tensor) -> Tensor:
        if id(then) in self._shared:
            return cast(Tensor, self._shared[id(then)])
        like = next((p for p in self._parameters if is_dtensor(p) and p.shape == then.shape), None)
        then = then if like is None else distribute_like(then, like)
        is_alike = isinstance(now, Tensor) and (now.shape, now.dtype, now.device) == (then.shape, then.dtype, then.device)
        is_free = is_alike and id(now) not in self._taken and is_dtensor(now) == is_dtensor(then) and not now.is_inference()
        if not is_free or any(stride == 0 for stride in now.stride()) or (now.requires_grad and not now.is_leaf):
            return then
        self._taken.add(id(now))
        with torch.no_grad():
            now.copy_(then)
        return cast(Tensor, now)


def _put_generator(name: str, now: Any, state: Any) -> Any:
    if not is_generator(now):
        raise MismatchError(
            f"an optimizer's attribute {name!r} was a random generator when the checkpoint was saved, and is a "
            f"{type(now).__name__} now, so it cannot be restored. Make the generator where the optimizer is made."
        )
    put_state(now, state)
    return now


class _Leaves:
    """What is anywhere in the state that a class says it has."""

    def __init__(self, tree: Any) -> None:
        self.names = set[str]()
        self._values: list[Any] = []
        self._ids = set[int]()
        self._walk(tree)

    def _walk(self, tree: Any) -> None:
        if isinstance(tree, Mapping):
            self.names |= {key.strip("_") for key in tree if isinstance(key, str)}
            for value in tree.values():
                self._walk(value)
        elif isinstance(tree, (list, tuple)):
            for value in tree:
                self._walk(value)
        elif isinstance(tree, Tensor):
            self._ids.add(tree.data_ptr() if not is_dtensor(tree) else id(tree))
        elif isinstance(tree, (int, float)):
            self._values.append(tree)

    def hold(self, value: Any) -> bool:
        """Whether all numbers and tensors of a tree are there. (Flags do not count: they may say
        what is set up.)"""
        held = True

        def look(leaf: Any) -> None:
            nonlocal held
            if isinstance(leaf, Tensor):
                held = held and (leaf.data_ptr() if not is_dtensor(leaf) else id(leaf)) in self._ids
            elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
                held = held and leaf in self._values

        mapped(value, look)
        return held
