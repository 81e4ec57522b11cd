"""The module's own attributes, and what a step does to them.

``self.outputs.append(loss)`` in ``validation_step`` is how Lightning's documentation collects
values for the end of the epoch. The step runs for each shard or batch on one process, so such a
list would hold that process's part only. What a step appends to a list is therefore taken off
again, shared, and appended on every rank in the order of shards and batches. What a step assigns
lasts until the step ends (see ``Local``), and any other change is an error."""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Iterator, MutableMapping, MutableSequence, MutableSet
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from lockstep._base.errors import UsageError
from lockstep.integrations.lightning._contents import MOST, is_plain_object
from lockstep.integrations.lightning._local import Local

Path = tuple[Any, ...]
"""The name of an attribute, then keys and indices down to a list."""
Growth = tuple[Path, list[Any]]
"""A list, and what was appended to it."""
_MOST_BYTES = 1 << 20
"""Of a NumPy array whose values are looked at."""


_PLAIN = (bool, int, float, str, bytes, type(None))
_NUMBERS = (bool, int, float)


class _Named(str):
    """In a path: the name of an attribute of a plain object."""

    __slots__ = ()


_REMEDY = (
    "To sum or average it, use self.log or a torchmetrics.Metric; to collect it, append it to a list that is an attribute; to "
    "count steps, use batch_idx, self.global_step, or a hook such as on_train_batch_end, which runs once per step."
)


class Attributes:
    """Watches the attributes of a LightningModule.

    Args:
        module: the module.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._ignored = {*vars(LightningModule()), "forward", "log", "_on_before_batch_transfer"}
        self._warned: set[str] = set()

    def look(self) -> dict[Path, Any]:
        """The attributes now. Each list, mapping, set or tensor in them stands with its size or
        version."""
        return dict(self._walk())

    def changes(self, before: dict[Path, Any], step: str) -> tuple[list[Growth], list[str]]:
        """What has happened since, undone: lists are as long as before, and assigned attributes
        raise errors when they are used.

        Returns:
            What was appended to lists, and the names of attributes that were assigned.

        Raises:
            UsageError: something else has changed.
        """
        grown, assigned = list[Growth](), list[str]()
        replaced = set[Path]()
        appended: dict[Path, int] = {}
        for path, (value, mark) in list(self._walk()):
            if any(path[: len(above)] == above for above in replaced):
                continue
            if any(path[: len(above)] == above and path[len(above)] >= size for above, size in appended.items()):
                continue  # part of what was appended
            known = before.get(path)
            if known is not None and (known[0] is value or (isinstance(value, _PLAIN) and known[0] == value)):
                if known[1] == mark:
                    continue
                if isinstance(value, MutableSequence) and _can_grow(path, value) and mark > known[1]:
                    grown.append((path, list(itertools.islice(value, known[1], None))))
                    while len(value) > known[1]:
                        value.pop()
                    appended[path] = known[1]
                    continue
                if isinstance(value, MutableMapping) and known[1] < mark <= MOST:
                    continue  # its new values follow
                self._refuse(path, step)
            elif len(path) == 1:
                replaced.add(path)
                assigned.append(path[0])
            elif known is None and isinstance(value, MutableSequence) and _can_grow(path, value):  # of a defaultdict(list)
                replaced.add(path)
                grown.append((path, list(value)))
                value.clear()
            elif known is None and _is_inside(path):
                continue  # as by functools.cached_property. If it changes later, that is refused
            else:
                self._refuse(path, step)
        self.hide(assigned, step)
        return grown, assigned

    def look_inside(self, *, buffers: bool) -> dict[str, Any]:
        """The numbers that are attributes of submodules now; ``buffers``: also the buffers, with
        their versions."""
        inside = dict[str, Any]()
        for owner, module in self._module.named_modules():
            if module is self._module or isinstance(module, Metric | MetricCollection):
                continue
            inside |= {f"self.{owner}.{name}": value for name, value in vars(module).items() if type(value) in (int, float)}
        if buffers:
            inside |= {f"self.{name}": _Version(buffer) for name, buffer in self._module.named_buffers()}
        return inside

    def check_inside(self, before: dict[str, Any], step: str) -> None:
        """Warn of numbers of submodules that the step has changed.

        Raises:
            UsageError: it has changed a buffer.
        """
        buffers = any(isinstance(value, _Version) for value in before.values())
        for name, value in self.look_inside(buffers=buffers).items():
            if name not in before or before[name] == value:
                continue
            if isinstance(value, _Version):
                raise UsageError(
                    f"{step} changes the buffer {name}. Batches are evaluated on several processes, each with a module of its "
                    f"own, so every process would have a different value. {_REMEDY}"
                )
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(
                    f"{name} changes in {step}, from {before[name]!r} to {value!r}. A step runs once per shard or batch, each "
                    "on one process, so every process has a different value, and none is in a checkpoint. If a result follows "
                    "from it, as of a counter, it depends on the number of processes: use self.global_step of the "
                    "LightningModule, a buffer, or a hook such as on_train_batch_start.",
                    stacklevel=2,
                )

    def lists(self) -> list[tuple[Path, Any, str]]:
        """For each list: its path, what holds it (by the last part of the path), and how the script
        calls it."""
        return [
            (path, self._at(path[:-1]), _name(path))
            for path, (value, _) in self._walk()
            if type(value) is list
            and not _is_inside(path)
            and not any(isinstance(self._at(path[:end]), list) for end in range(1, len(path)))
        ]

    def _at(self, path: Path) -> Any:
        found: Any = vars(self._module)
        for key in path:
            found = found[key]
        return found

    def hide(self, names: list[str], step: str) -> None:
        """Let attributes raise errors when they are used."""
        for name in names:
            vars(self._module)[name] = Local(f"self.{name}, which {step} sets,", _REMEDY)

    def append(self, path: Path, items: list[Any]) -> None:
        """Append to a list."""
        found: Any = vars(self._module)
        for index, key in enumerate(path):
            if isinstance(found, MutableMapping) and key not in found and index == len(path) - 1:
                found[key] = []  # of a defaultdict(list), on a process that has not run the step
            found = found[key]
        found.extend(items)

    def _walk(self) -> Iterator[tuple[Path, Any]]:
        for name, value in vars(self._module).items():
            if name not in self._ignored and not isinstance(value, Local):
                yield from _walk((name,), value, 3)

    def _refuse(self, path: Path, step: str) -> None:
        raise UsageError(
            f"{step} changes {_name(path)} in place. It runs once per shard (in an evaluation, once per batch), each "
            "on one process, so "
            f"every process would have a different value. {_REMEDY}"
        )


class _Version:
    """A buffer as it is now."""

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer
        self._version = None if buffer.is_inference() else buffer._version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Version) and self._buffer is other._buffer and self._version == other._version

    __hash__ = None  # type: ignore[assignment]


def _name(path: Path) -> str:
    return f"self.{path[0]}" + "".join(f".{key}" if isinstance(key, _Named) else f"[{key!r}]" for key in path[1:])


def _can_grow(path: Path, value: MutableSequence[Any]) -> bool:
    """Whether what a step appends to a list can be appended elsewhere. (A deque with ``maxlen``
    forgets items.)"""
    return getattr(value, "maxlen", None) is None and not _is_inside(path)


def _is_inside(path: Path) -> bool:
    """Whether it leads into a plain object."""
    return any(isinstance(key, _Named) for key in path)


def _walk(path: Path, value: Any, depth: int) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Tensor):
        yield path, (value, None if value.is_inference() else value._version)
    elif isinstance(value, np.ndarray):
        yield (
            path,
            (value, zlib.crc32(value.tobytes()) if value.nbytes <= _MOST_BYTES and not value.dtype.hasobject else None),
        )
    elif isinstance(value, torch.Generator):
        yield path, (value, zlib.crc32(value.get_state().numpy().tobytes()))
    elif isinstance(value, MutableSequence | MutableMapping | MutableSet):
        yield path, (value, len(value))
    else:
        yield path, (value, None)
    if not depth:
        return
    if isinstance(value, MutableMapping) and len(value) <= MOST:
        for key, item in list(value.items()):
            yield from _walk((*path, key), item, depth - 1)
    elif isinstance(value, MutableSequence) and len(value) <= MOST:
        for index, item in enumerate(value):
            yield from _walk((*path, index), item, depth - 1)
    elif is_plain_object(value):
        # Not its mappings and sets: objects keep caches in them, which are no results.
        for name, item in list(vars(value).items()):
            if isinstance(item, (*_NUMBERS, Tensor, np.ndarray, MutableSequence)):
                yield from _walk((*path, _Named(name)), item, depth - 1)
