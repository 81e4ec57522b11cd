"""Detects changes by the script in a dataset of which loader workers have copies.

Workers get their copies when they start: with each pass, or once, if they are persistent. A later
change affects no sample, as in plain PyTorch, but without workers it affects the next one. So the
result would depend on ``num_workers``. In steps 1, 2, 4, 8, ... a snapshot of the dataset is taken,
and later compared with the dataset.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from lockstep._base.held import Held, root, walk
from lockstep._base.stopping import say
from lockstep._base.tracebacks.frames import owner
from lockstep._data.changed_samples import Snapshot
from lockstep._data.torch_loader import is_torch_loader
from lockstep._plan.powers_of_two import PowersOfTwo


class WorkerCopies:
    """The watch over a loader's dataset, which warns once.

    Args:
        batches: the script's loader.
        speaks: whether to watch at all: on one rank.
    """

    def __init__(self, batches: Any, *, speaks: bool) -> None:
        self._batches = batches
        self._dataset = getattr(batches, "dataset", None)
        self._looks = PowersOfTwo()
        self._before: tuple[int, Snapshot] | None = None
        """A step, and a snapshot of the dataset in it; None: there is none."""
        # A stream is read in one worker, and a change in this process never reaches its copy.
        has_copies = is_torch_loader(batches) and batches.num_workers > 0 and not isinstance(self._dataset, IterableDataset)
        self.is_looking = speaks and has_copies
        """Whether the dataset is watched. (An attribute, since a pass may end while Python shuts
        down.)"""
        self.next: float = 0 if self.is_looking else math.inf
        """The first step with a snapshot or a comparison."""

    def look(self, step: int) -> None:
        """Compares the dataset with the snapshot, and may take another, at the beginning of a
        step."""
        # Before a new snapshot, which would hide the change.
        self._compare(step)
        if not self.is_looking:
            return
        if self._looks.take(step):
            self._before = step, Snapshot([self._dataset])
        self.next = max(self._looks.next, step + 1)

    def end_pass(self, step: int) -> None:
        """Compares at the end of a pass. The next pass has new copies, unless its workers are the
        same."""
        self._compare(step)
        # A method set_epoch is called in each worker, too, and may change the dataset.
        if not self._batches.persistent_workers or hasattr(self._dataset, "set_epoch"):
            self._before = None

    def _compare(self, step: int) -> None:
        if self._before is None:
            return
        since, before = self._before
        changed = next((held for held in before.changed() if self._counts(held, before)), None)
        if changed is None:
            return
        self._before, self.is_looking, self.next = None, False, math.inf
        path = changed.path + before.place(changed)
        name = "dataset" if not path else f"dataset{path}" if path.startswith((".", "[")) else f"dataset.{path}"
        say(
            f"WARNING: {name} ({type(self._dataset).__name__}) was changed between steps {since} and {step}, while loader "
            "workers have older copies of the dataset: the change affects no sample "
            + ("" if self._batches.persistent_workers else "before the next pass ")
            + "(with num_workers=0 it affects the next one), so the result depends on num_workers. Change data between passes"
            + (", without persistent_workers" if self._batches.persistent_workers else "")
            + "; in a method set_epoch(epoch) of the dataset, which each worker calls; or in the loop."
        )

    def _counts(self, changed: Held, before: Snapshot) -> bool:
        """Returns whether samples may depend on a change. A setting that the dataset contains but
        does not read (``args.step``) does not count."""
        if not _contains_settings(changed.value):
            return not _is_shared(changed.value)
        read = _names_in_code([self._dataset, getattr(self._batches, "collate_fn", None)])
        return not read.isdisjoint(_READS_ANY) or any(key in read for key in before.places(changed))


_READS_ANY = frozenset({"vars", "getattr", "__dict__", "asdict", "astuple", "eval", "exec"})
"""Names in code that reads attributes by computed names."""
_MOST_OBJECTS = 4096


def _contains_settings(value: Any) -> bool:
    return isinstance(value, (argparse.Namespace, types.SimpleNamespace)) or dataclasses.is_dataclass(value)


def _names_in_code(things: list[Any]) -> set[Any]:
    """Returns the names and texts in code of the script that may run for these objects: in the
    classes of objects inside them, in functions, and in the functions and classes that these
    name."""
    functions = [f for held in walk(map(root, things), _is_no_tensor, most=_MOST_OBJECTS) for f in _functions_of(held.value)]
    names, seen = set[Any](), set[int]()
    while functions:
        function = functions.pop()
        if id(function) in seen or owner(function.__code__.co_filename) != "user":
            continue
        seen.add(id(function))
        own = set(_constants(function.__code__))
        names |= own
        known = [function.__globals__[name] for name in own if isinstance(name, str) and name in function.__globals__]
        modules = [vars(value) for value in known if isinstance(value, types.ModuleType)]
        known += [module[name] for module in modules for name in own if isinstance(name, str) and name in module]
        functions += [f for value in known for f in _functions_of(value)]
    return names


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """Yields a function itself, or the functions of a class, or of an object's class."""
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        yield value
        return
    kind = value if isinstance(value, type) else type(value)
    for part in kind.__mro__:
        for item in vars(part).values():
            for own in (item, getattr(item, "__func__", None), getattr(item, "fget", None), getattr(item, "func", None)):
                if isinstance(own, types.FunctionType):
                    yield own


def _constants(code: types.CodeType) -> Iterator[Any]:
    """Yields the names of globals and attributes, and the texts, in code and nested code."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _constants(constant)
        elif isinstance(constant, str):
            yield constant


def _is_no_tensor(value: Any) -> bool:
    return not isinstance(value, torch.Tensor)


def _is_shared(value: Any) -> bool:
    """Returns whether a tensor is in memory that is shared with the workers."""
    return bool(getattr(value, "is_shared", bool)())
