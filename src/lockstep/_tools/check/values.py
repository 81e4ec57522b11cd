"""What the interpreter knows of a value, of an object, and of a place in the script that changes
one."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lockstep._tools.check import names

DATA, SIZE, RANDOM, CLOCK, RANKED, NUMBER, WORLD, OWNED = (1 << bit for bit in range(8))
"""The flags of a value: made of a shard's samples; of their number; of random numbers; of the time;
of the rank, or of what was gathered from all ranks; a number that counts this process's shards;
made of the number of processes; a sample, or a part of one, that the dataset keeps and has returned
itself (not what is computed from it)."""
OF_A_SHARD = DATA | SIZE | RANDOM | NUMBER
"""A value with one of these may be another in each shard."""


class Site(NamedTuple):
    """A place in the script that changes something which lives on."""

    path: str
    line: int
    column: int
    name: str
    how: str
    """``set``, ``add`` (to its own old value), ``max``, ``min``, ``or``, ``and`` (of that and
    another), ``append``, ``cache`` (of a function), ``change`` (in place), ``attribute``, ``given``
    (an attribute to an object of a library), ``average`` (a copy of a model), ``draw`` (a
    generator), ``next`` (an iterator), ``number`` (of enumerate), ``beside epochs`` (of enumerate
    or zip), ``shard number``, ``statistics``, ``buffer`` (of a module), ``optimizer`` (what an
    optimizer contains), ``left out`` (of a ``state_dict()``), ``worker``, ``world``, ``data
    set``."""
    inside: bool
    """Whether it runs once a shard."""
    scope: int = 0
    """The function in which it is."""
    method: str = ""
    """The method that the loop calls, such as ``Meter.update``, of a change to an object of a class
    of the script."""


class Write(NamedTuple):
    """A site that may have written the present content of a location."""

    site: Site
    loops: tuple[int, ...]
    """The loops, from outside to inside, in whose bodies it ran."""
    stale: bool = False
    """Whether one of the loops has begun another iteration, or finished, since."""
    slight: bool = False
    """Only a number of samples: what later shards keep of it is mostly a cache by shape."""


class Value(NamedTuple):
    """The possible values of an expression."""

    objects: frozenset[Object] = frozenset()
    flags: int = 0
    sites: frozenset[Site] = frozenset()
    """The sites on which the value depends: writes of another shard of this process, or of an
    earlier step."""
    items: tuple[Value, ...] | None = None
    """The values of a tuple that is spelled out; None: it is no such tuple."""
    texts: frozenset[str] = frozenset()
    """The possible texts, if the value is a constant text of the script: names of attributes are
    found by it."""

    @staticmethod
    def of(*objects: Object) -> Value:
        """One of these objects."""
        return Value(frozenset(objects))

    @staticmethod
    def made(flags: int = 0, sites: frozenset[Site] = frozenset(), items: tuple[Value, ...] | None = None) -> Value:
        """A computed value, which is no object that other variables share."""
        return Value(frozenset(), flags, sites, items)

    def plain(self) -> Value:
        """The value of a computation with this one: it depends on the same, and is no object that
        other variables share."""
        if not self.objects and self.items is None and not self.flags & OWNED:
            return self
        return Value.made(self.flags & ~OWNED, self.sites)

    def own(self) -> Value:
        """The same value, of which the dataset keeps nothing."""
        items = None if self.items is None else tuple(item.own() for item in self.items)
        return self._replace(flags=self.flags & ~OWNED, items=items)


class Cell(NamedTuple):
    """The content of a location, and what may have written it."""

    value: Value
    writes: frozenset[Write] = frozenset()


@dataclass(eq=False, slots=True)
class Object:
    """An object that the script makes, named by the place that makes it."""

    kind: str
    """``team``, ``batch``, ``evaluation``, ``loader``, ``iterator``, ``list`` (and other
    containers), ``tensor``, ``module``, ``instance``, ``function``, ``class``, ``generator`` (of
    random numbers), ``optimizer``, ``clock``, ``file`` (a module), ``shards``, ``epochs``,
    ``opaque``."""
    name: str = ""
    node: ast.AST | None = None
    definition: ast.AST | None = None
    frame: Frame | None = None
    owner: Object | None = None
    """The object of a bound method."""
    bases: list[Object] = field(default_factory=list)
    children: set[Object] = field(default_factory=set)
    is_prepared: bool = False
    is_kept: bool = False
    """Whether it is in checkpoints."""
    in_state: frozenset[str] | None = None
    """The attributes of which its ``state_dict()`` speaks. None: all, or it is not known."""
    hands_out: bool = False
    """Whether a loader's batches are samples that its dataset keeps, and no copies."""
    is_copy: bool = False
    is_buffer: bool = False
    has_statistics: bool = False
    is_evaluating: bool = False
    buffers: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    """Attributes that were set from outside of its class."""
    is_early: bool = False
    """Whether it was made before ``join()``, with random numbers that were not seeded."""
    arguments: tuple[list[Value], dict[str, Value]] | None = None
    """The arguments of a call of a generator function, which runs when it is iterated."""

    def library_classes(self) -> set[str]:
        """The names of the classes of libraries from which an instance's class inherits."""
        waiting, seen = list(self.bases), set[Object]()
        while waiting:
            base = waiting.pop()
            if base not in seen:
                seen.add(base)
                waiting += base.bases
        return {base.name for base in seen if base.kind == "external"}

    def is_optimizer(self) -> bool:
        """Whether it is an instance of an optimizer's class."""
        return self.kind == "instance" and any(map(names.OPTIMIZERS.match, self.library_classes()))

    def holds_state(self, name: str = "") -> bool:
        """Whether a value that is assigned to this attribute is in checkpoints: by the object's
        ``state_dict()``, or, for an optimizer, if the value is plain."""
        if not name or self.in_state is None or name in self.in_state:
            return self.is_kept and (not self.is_prepared or self.is_optimizer())
        return False

    def is_kept_iterator(self) -> bool:
        """Whether its position is in checkpoints."""
        return self.kind == "iterator" and self.is_prepared


@dataclass(eq=False, slots=True)
class Frame:
    """The variables of a function, a module, a class or a comprehension."""

    parent: Frame | None
    path: str
    definition: ast.AST | None = None
    outer_names: frozenset[str] = frozenset()
    """Declared ``nonlocal``, or ``global``."""
    global_names: frozenset[str] = frozenset()
    stars: list[str] = field(default_factory=list)
    """Libraries whose names are imported by a star."""

    def module(self) -> Frame:
        """The frame of the file's own variables."""
        frame = self
        while frame.parent is not None:
            frame = frame.parent
        return frame


NOTHING = Value()
_MOST_TEXTS = 20


def merge(values: Iterable[Value]) -> Value:
    """One of these values."""
    known = [value for value in values if value != NOTHING]
    if len(known) <= 1:
        return known[0] if known else NOTHING
    objects: frozenset[Object] = frozenset()
    flags, sites, texts = 0, frozenset[Site](), frozenset[str]()
    parts = known[0].items
    same = parts is not None and all(value.items is not None and len(value.items) == len(parts) for value in known)
    for value in known:
        one = value if same or value.items is None else merge((value._replace(items=None), *value.items))
        objects |= one.objects
        flags |= one.flags
        sites |= one.sites
        texts |= one.texts
    items = tuple(merge(part) for part in zip(*(value.items or () for value in known), strict=True)) if same else None
    return Value(objects, flags, sites, items, texts)


def mix(values: Iterable[Value]) -> Value:
    """What is made of all of these values."""
    flags, sites = 0, frozenset[Site]()
    for value in values:
        flags |= value.flags
        if value.sites:
            sites |= value.sites
    if flags & CLOCK and sites:
        flags &= ~CLOCK  # a line of output with the time, say: what else is in it counts
    return Value.made(flags & ~OWNED, sites)


def text(parts: Sequence[Value]) -> frozenset[str]:
    """The possible concatenations of texts, if all of them are constants of the script."""
    found = frozenset(
        "".join(chosen) for chosen in itertools.islice(itertools.product(*(p.texts for p in parts)), _MOST_TEXTS)
    )
    return found if all(part.texts for part in parts) else frozenset()


def compute(left: Value, right: Value) -> Value:
    """What an operator makes of two values. A duration, or samples by second, differ from run to
    run anyway."""
    flags = (left.flags | right.flags) & ~OWNED
    return Value.made(flags, frozenset() if flags & CLOCK else left.sites | right.sites)
