"""Walks the graph of objects: everything that can be reached from an object or from the variables
of a script, each with its path.

Reading avoids properties, ``__getattr__`` and iterators, so that no code of the script runs."""

from __future__ import annotations

import functools
import re
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lockstep._base.tracebacks.frames import owner

Key = str | tuple[Any]
"""A place in an object: the name of an attribute or variable; or an index or key of a container, in
a tuple."""

_ATOMS = frozenset({int, float, complex, bool, str, bytes, bytearray, type(None), type(Ellipsis), range, slice})
_CODE = (type, types.BuiltinFunctionType, types.CodeType, types.GeneratorType, types.CoroutineType)
_BUILTIN = frozenset({dict, list, tuple, set, frozenset, deque})
_CONTAINERS = frozenset({*_BUILTIN, OrderedDict})
_BESIDE = "|"
"""The first character of the name of a variable that a function uses: the script does not write the
function's name before it."""
_REGISTRY = re.compile(r"\._(?:parameters|buffers|modules)\['([^']*)'\]|\._wrapped\b")
"""The registries of a module, whose items are attributes; and the attribute of a prepared model
that contains the script's model."""


@dataclass(slots=True, eq=False)
class Held:
    """An object, and where it was found."""

    value: Any
    holder: Held | None
    """The object that refers to it; None: the search began here."""
    key: Key
    """The place in the holder."""

    @property
    def path(self) -> str:
        """The expression that the script may write: ``trainer.ema.shadow['weight']``."""
        first = [self, *self.above][-1]
        text = "".join(f".{key}" if isinstance(key, str) else f"[{key[0]!r}]" for key in (first.key, *self.below(first)))
        text = text.rpartition(_BESIDE)[2].lstrip(".")
        return _REGISTRY.sub(lambda found: f".{found[1]}" if found[1] else "", text)

    @property
    def above(self) -> Iterator[Held]:
        """The holder, the holder's holder, and so on."""
        held = self.holder
        while held is not None:
            yield held
            held = held.holder

    def below(self, top: Held) -> tuple[Key, ...]:
        """Returns its place as seen from one of its holders, in the form that ``find`` takes."""
        keys, held = list[Key](), self
        while held is not top and held.holder is not None:
            keys.append(held.key)
            held = held.holder
        return tuple(reversed(keys))


def root(value: Any) -> Held:
    """Returns a starting point for ``walk``."""
    return Held(value, None, "")


def find(top: Held, place: Iterable[Key]) -> Held | None:
    """Returns the object at a place; None: there is none."""
    for key in place:
        child = next((child for name, child in children(top.value) if name == key), None)
        if child is None:
            return None
        top = Held(child, top, key)
    return top


def walk(
    roots: Iterable[Held],
    enters: Callable[[Any], bool],
    *,
    most: int,
    last: tuple[type, ...] = (),
    without: set[int] | None = None,
) -> Iterator[Held]:
    """Yields all reachable objects except plain values, nearest first, each once. The caller may
    change an object that was yielded.

    Args:
        enters: whether to search an object for more.
        most: the number of objects after which to stop.
        last: kinds of objects that are preferably found elsewhere than directly at the starting
            points.
        without: the ids of objects that are neither yielded nor searched. Then containers with
            only these or only plain values, of which a module has 17, are not yielded either.
    """
    begin = list(roots)
    waiting, later = deque(begin), list[Held]()
    # Keeps the objects alive: an id is unique only among living objects.
    seen = {id(held.value): held.value for held in begin}
    num_first = len(begin)
    while (waiting or later) and len(seen) <= most:
        if not waiting:
            waiting.extend(held for held in later if id(held.value) not in seen)
            seen.update((id(held.value), held.value) for held in later)
            later = []
            continue
        held = waiting.popleft()
        yield held
        is_first, num_first = num_first > 0, num_first - 1
        if not (is_first or enters(held.value)):
            continue
        for key, child in children(held.value):
            # In this order: of the 30 attributes of a module most are plain values, or empty.
            if (kind := type(child)) in _ATOMS:
                continue
            if without is not None and kind in _CONTAINERS and (not child or _has_only(child, without)):
                continue
            if (number := id(child)) in seen or (without is not None and number in without):
                continue
            if is_first and last and isinstance(child, last):
                later.append(Held(child, held, key))
                continue
            seen[number] = child
            waiting.append(Held(child, held, key))


def _has_only(container: Any, known: set[int]) -> bool:
    """Returns whether a container has only plain values, or only objects with these ids."""
    items = container.values() if isinstance(container, dict) else container
    return _ATOMS.issuperset(map(type, items)) or known.issuperset(map(id, items))


def children(value: Any) -> Iterable[tuple[Key, Any]]:
    """Yields what an object refers to: each place, and the object there."""
    kind: Any = type(value)
    return _reader(kind)(value)


@functools.lru_cache(maxsize=1024)  # a walk meets many objects of few types
def _reader(kind: type) -> Callable[[Any], Iterable[tuple[Key, Any]]]:
    """Returns what reads objects of a type."""
    if kind in _BUILTIN:
        return _items
    if kind in _ATOMS or issubclass(kind, _CODE):
        return _nothing
    if kind is types.FrameType:
        return _variables
    if issubclass(kind, types.ModuleType):
        return _globals
    if kind is types.FunctionType:
        return _closure
    if kind is types.MethodType:
        return _bound
    if issubclass(kind, functools.partial):
        return _partial
    return _items_and_attributes if issubclass(kind, (dict, list, tuple, set, frozenset, deque)) else _attributes


def _nothing(value: Any) -> tuple[()]:
    return ()


def _variables(frame: types.FrameType) -> list[tuple[Key, Any]]:
    # A comprehension has variables such as `.0`, which a script cannot write.
    return [(name, item) for name, item in list(frame.f_locals.items()) if name.isidentifier()]


def _globals(module: types.ModuleType) -> list[tuple[Key, Any]]:
    is_script = owner(getattr(module, "__file__", None) or "<") == "user" or module.__name__ == "__main__"
    return list(vars(module).items()) if is_script else []


def _bound(method: types.MethodType) -> list[tuple[Key, Any]]:
    return [(f"{_BESIDE}<{type(method.__self__).__name__}>", method.__self__)]


def _partial(value: functools.partial[Any]) -> list[tuple[Key, Any]]:
    return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]


def _items_and_attributes(value: Any) -> list[tuple[Key, Any]]:
    return [*_items(value), *_attributes(value)]


def _items(value: Any) -> list[tuple[Key, Any]]:
    # By the methods of the built-in types, which a subclass of the script may have overridden. As a
    # list, since the caller may change an object that it was given.
    if isinstance(value, dict):
        return [
            ((key,) if type(key) in _ATOMS else (f"<{type(key).__name__} {id(key)}>",), item)
            for key, item in list(dict.items(value))
        ]
    if isinstance(value, list):
        return [((number,), item) for number, item in enumerate(list.__iter__(value))]
    if isinstance(value, tuple):
        return [((number,), item) for number, item in enumerate(tuple.__iter__(value))]
    return [((number,), item) for number, item in enumerate(list(value))]


def _closure(function: types.FunctionType) -> Iterator[tuple[Key, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{_BESIDE}{name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _attributes(value: Any) -> list[tuple[Key, Any]]:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        attributes = {}
    found: list[tuple[Key, Any]] = list(attributes.items())
    kind: Any = type(value)
    for name in _slots(kind):
        try:
            found.append((name, object.__getattribute__(value, name)))
        except AttributeError:
            continue
    return found


@functools.lru_cache(maxsize=1024)
def _slots(kind: Any) -> tuple[str, ...]:
    """Returns the names of attributes that are in no ``__dict__``."""
    found = []
    for part in kind.__mro__:
        names = vars(part).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            # Python stores `__x` of a class `_C` as `_C__x`: after the class's name without its
            # underscores.
            is_private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{part.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))
