"""The attributes that a script adds to its LightningModule, and the changes that a step makes to
them.

Lightning's documentation collects values for the end of an epoch with
``self.outputs.append(loss)`` in ``validation_step``. A step runs for each shard or batch on one
process, so such a list would contain the items of one process only. Therefore, by kind of change:

- **Items appended to a list** are removed after the step, shared, and appended on every rank, in
  the order of shards and batches.
- **An assigned attribute** is valid until the end of the step; any later use is an error
  (``Local``).
- **Any other change** is an error."""

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
"""The place of a value: the name of an attribute, then keys and indices."""
Growth = tuple[Path, list[Any]]
"""The place of a list, and the items that were appended to it."""
_MOST_BYTES = 1 << 20
"""The largest size of a NumPy array whose values are compared, by checksum, in bytes. A checksum of
a larger one would slow down every step."""


_PLAIN = (bool, int, float, str, bytes, type(None))
_NUMBERS = (bool, int, float)


class _Named(str):
    """The name of an attribute of a plain object, as a part of a path."""

    __slots__ = ()


_REMEDY = (
    "To sum or average, use self.log or a torchmetrics.Metric; to collect, append to a list attribute; to count steps, use "
    "batch_idx, self.global_step or on_train_batch_end."
)


class Attributes:
    """The attributes of a LightningModule, compared before and after each step.

    Args:
        module: the module.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._ignored = {*vars(LightningModule()), "forward", "log", "_on_before_batch_transfer"}
        self._warned: set[str] = set()

    def look(self) -> dict[Path, Any]:
        """Returns the present attributes. Each list, mapping, set or tensor comes with a mark: its
        size or version."""
        # Values themselves are not copied: a copy of each list per step would be slow.
        return dict(self._walk())

    def changes(self, before: dict[Path, Any], step: str) -> tuple[list[Growth], list[str]]:
        """Finds the changes since ``look`` and undoes them: lists get their earlier length, and
        assigned attributes raise errors when they are used.

        Returns:
            The items that were appended to lists, and the names of attributes that were assigned.

        Raises:
            UsageError: something changed in another way.
        """
        grown, assigned = list[Growth](), list[str]()
        replaced = set[Path]()
        appended: dict[Path, int] = {}
        for path, (value, mark) in list(self._walk()):
            if any(path[: len(above)] == above for above in replaced):
                continue
            if any(path[: len(above)] == above and path[len(above)] >= size for above, size in appended.items()):
                continue  # Inside an appended item.
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
                    continue  # The walk visits its new items next.
                self._refuse(path, step)
            elif len(path) == 1:
                replaced.add(path)
                assigned.append(path[0])
            elif known is None and isinstance(value, MutableSequence) and _can_grow(path, value):
                # A new list inside a container, for example of a defaultdict(list).
                replaced.add(path)
                grown.append((path, list(value)))
                value.clear()
            elif known is None and _is_inside(path):
                continue  # For example by functools.cached_property. A later change is an error.
            else:
                self._refuse(path, step)
        self.hide(assigned, step)
        return grown, assigned

    def look_inside(self, *, buffers: bool) -> dict[str, Any]:
        """Returns the present numbers among the attributes of submodules; with ``buffers``, also
        the buffers with their versions."""
        inside = dict[str, Any]()
        for owner, module in self._module.named_modules():
            if module is self._module or isinstance(module, Metric | MetricCollection):
                continue
            inside |= {f"self.{owner}.{name}": value for name, value in vars(module).items() if type(value) in (int, float)}
        if buffers:
            inside |= {f"self.{name}": _Version(buffer) for name, buffer in self._module.named_buffers()}
        return inside

    def check_inside(self, before: dict[str, Any], step: str) -> None:
        """Warns of numbers of submodules that the step changed.

        Raises:
            UsageError: the step changed a buffer.
        """
        buffers = any(isinstance(value, _Version) for value in before.values())
        for name, value in self.look_inside(buffers=buffers).items():
            if name not in before or before[name] == value:
                continue
            if isinstance(value, _Version):
                raise UsageError(
                    f"{step} changes the buffer {name}. Processes evaluate different batches, so each would have a different "
                    f"value. {_REMEDY}",
                    code="buffer-changed-in-evaluation",
                )
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(
                    f"{step} changes {name} from {before[name]!r} to {value!r}. It runs once per shard or batch, each on one "
                    "process, so processes have different values and no checkpoint contains them. If results depend on "
                    "it, use self.global_step of the LightningModule, a buffer, or a hook such as on_train_batch_start.",
                    stacklevel=2,
                )

    def lists(self) -> list[tuple[Path, Any, str]]:
        """Returns for each list its path, its container (which contains it under the last part of
        the path), and its name in the script."""
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
        """Makes attributes raise errors when they are used."""
        for name in names:
            vars(self._module)[name] = Local(f"self.{name}, which {step} sets,", _REMEDY)

    def append(self, path: Path, items: list[Any]) -> None:
        """Appends items to a list."""
        found: Any = vars(self._module)
        for index, key in enumerate(path):
            if isinstance(found, MutableMapping) and key not in found and index == len(path) - 1:
                # A process that did not run the step lacks the new list of a defaultdict(list).
                found[key] = []
            found = found[key]
        found.extend(items)

    def _walk(self) -> Iterator[tuple[Path, Any]]:
        for name, value in vars(self._module).items():
            if name not in self._ignored and not isinstance(value, Local):
                yield from _walk((name,), value, 3)

    def _refuse(self, path: Path, step: str) -> None:
        raise UsageError(
            f"{step} changes {_name(path)} in place. It runs once per shard (in an evaluation, once per batch), each on one "
            f"process, so processes would have different values. {_REMEDY}",
            code="attribute-changed-in-step",
        )


class _Version:
    """The version of a buffer at one moment."""

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer
        self._version = None if buffer.is_inference() else buffer._version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Version) and self._buffer is other._buffer and self._version == other._version

    __hash__ = None  # type: ignore[assignment]


def _name(path: Path) -> str:
    return f"self.{path[0]}" + "".join(f".{key}" if isinstance(key, _Named) else f"[{key!r}]" for key in path[1:])


def _can_grow(path: Path, value: MutableSequence[Any]) -> bool:
    """Returns whether items of a list can be appended on other ranks, unlike items of a deque with
    ``maxlen``, which drops some."""
    return getattr(value, "maxlen", None) is None and not _is_inside(path)


def _is_inside(path: Path) -> bool:
    """Returns whether a path leads into a plain object."""
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
        # Mappings and sets of plain objects are usually caches, which do not change results.
        for name, item in list(vars(value).items()):
            if isinstance(item, (*_NUMBERS, Tensor, np.ndarray, MutableSequence)):
                yield from _walk((*path, _Named(name)), item, depth - 1)
