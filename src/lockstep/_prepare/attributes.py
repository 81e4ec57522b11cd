"""The state that an optimizer keeps in attributes, which PyTorch's ``state_dict`` does not contain:
a count of steps, a list of momenta.

::

    prepare      a snapshot of each attribute (ids and versions of tensors, a digest of the rest)
    checkpoint   attributes that differ from their snapshot are saved
    resume       the constructor makes all attributes, and the saved ones are put back in place

An attribute that has not changed since the optimizer was prepared is not saved: the constructor
makes it again, perhaps from an argument that the user has changed on purpose. A class that
overrides ``state_dict`` defines its own state, and lockstep relies on that. It only warns of
attributes that such a state seems to omit.
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
"""The first items of tuples that replace a parameter of the optimizer (followed by its number) and
a generator (followed by its state)."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.ndarray, np.generic, set, frozenset)
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.Size)
_CODE = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type, functools.partial),
    # These are watched and saved in other ways.
    *(Optimizer, nn.Module, torch.optim.lr_scheduler.LRScheduler),
)
"""The kinds of objects that are no state of an optimizer."""
_STRANGERS = {*sys.stdlib_module_names, "torch", "numpy", "lockstep"} - {"__main__"}
"""The packages whose objects (a logger, a clock) may change without any effect on what the script
computes."""
_LARGE_BYTES = 1 << 26
_MOST_ITEMS = 1000
_LATER = ("_opt_called", "_step_count")
"""The attributes that PyTorch's schedules add to an optimizer."""


class Attributes:
    """The attributes of one optimizer, with a snapshot from when this object was made."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._before = {name: _Snapshot(optimizer, value).kept() for name, value in self._own()}
        self._have_changed = set[str]()

    @property
    def _has_state_dict(self) -> bool:
        """Whether the class defines its own state."""
        return type(self._optimizer).state_dict is not Optimizer.state_dict or "state_dict" in vars(self._optimizer)

    def changed(self) -> dict[str, Any]:
        """Returns the changed attributes as trees, with tuples instead of parameters and
        generators. Values that checkpoints do not support are in them unchanged."""
        return {} if self._has_state_dict else self._changed()

    def omitted(self) -> dict[str, Any]:
        """Returns the changed attributes of a class that defines its own state, if neither their
        names nor their values are in that state."""
        if not self._has_state_dict:
            return {}
        stated, changed = _Leaves(self._optimizer.state_dict()), self._changed()
        return {
            name: value
            for name, value in changed.items()
            if name.strip("_") not in stated.names and not stated.contain(value)
        }

    def restore(self, saved: Mapping[str, Any], shared: Mapping[int, Any]) -> None:
        """Restores what ``changed`` returned, in place if possible: the script may keep references.

        Args:
            shared: the tensors in the optimizer's own state, by the ids of the saved tensors.
                Attributes may be the same tensors.
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
                # Permanently: an attribute that seems to have its first value again may differ in a
                # part that snapshots do not see.
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
    """Returns whether a value is no state: a function, a model, or a container of only these."""
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
    """An attribute at one moment, for a comparison with a later moment."""

    def __init__(self, optimizer: Optimizer, value: Any) -> None:
        self._tree = _coded(optimizer, value)
        self._tensors = [
            (id(leaf), 0 if leaf.is_inference() else version(leaf))
            for leaf in _leaves(self._tree)
            if isinstance(leaf, Tensor)
        ]
        """The ids of the attribute's tensors, and the number of in-place writes to each."""
        self._is_cut = any(map(is_dtensor, _leaves(self._tree)))
        self._content: str | None = None

    def kept(self) -> _Snapshot:
        """Returns this snapshot, without references to the attribute: it keeps nothing alive, and
        does not change with it."""
        self._take_content()
        return self

    def differs(self, before: _Snapshot) -> bool:
        """Returns whether the attribute has changed since an earlier snapshot."""
        # prepare() makes no tensors that are cut over the ranks in attributes: a step has made
        # them.
        if self._is_cut or self._tensors != before._tensors:
            return True
        # A write through ``.data`` leaves versions unchanged, so the content is compared, too.
        return self._take_content() != before._content

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
    """Returns the parts of a value that may change and matter: the numbers and tensors in an object
    of a class in the script."""
    kind = type(value)
    if isinstance(value, Tensor) and value.nbytes > _LARGE_BYTES:
        return int(bit_sum(value))  # ten times as fast, but blind to a permutation of the elements
    if isinstance(value, (*_PLAIN, Tensor)):
        return value
    if isinstance(value, _PLAIN_OF_TORCH):
        return str(value)
    if not depth:
        return kind.__qualname__
    if kind in MAPPINGS or kind in SEQUENCES:
        # An object may refer to a whole dataset. Of a long container only the length is compared.
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
    """The restoring of the attributes of one optimizer."""

    def __init__(self, optimizer: Optimizer, shared: Mapping[int, Any]) -> None:
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._shared = shared
        self._done: dict[int, Any] = {}
        """The restored tensors, by the ids of the saved ones. One tensor may have several
        places."""
        self._taken = set[int]()

    def put(self, name: str, now: Any, then: Any) -> Any:
        """Returns the value to use instead of ``now``: ``now`` itself, if the content of ``then``
        fits into it."""
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
        for key, value in items:  # ``update`` of a Counter would add
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
            f"cannot restore the optimizer's attribute {name!r}: it was a random generator in the checkpoint, and is a "
            f"{type(now).__name__} now. Create the generator in the optimizer's constructor.",
            code="generator-missing",
        )
    put_state(now, state)
    return now


class _Leaves:
    """All names and values in the state that a class defines."""

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

    def contain(self, value: Any) -> bool:
        """Returns whether all numbers and tensors of a tree are in the state. (Flags are ignored:
        they may record what is set up.)"""
        found = True

        def look(leaf: Any) -> None:
            nonlocal found
            if isinstance(leaf, Tensor):
                found = found and (leaf.data_ptr() if not is_dtensor(leaf) else id(leaf)) in self._ids
            elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
                found = found and leaf in self._values

        mapped(value, look)
        return found
