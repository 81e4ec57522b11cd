"""The memory of a loader's samplers from one index to the next, which can be recorded and put back.

::

    keepers      the loader, its samplers, and their helper objects, by path
    bindings     the attributes of each keeper            {"position": 12, "pool": <list>}
    contents     generators, lists, dicts, arrays in them, by id: what is *in* the mutable objects
    reported     digests of ``state_dict()``, for memory that is in neither

A binding changes when an attribute gets another object, and a content when an object is changed in
place. Both are needed: ``self.position += 1`` is the former, ``self.pool.pop()`` the latter.

The script may change samplers, too, and such changes must not be undone. So the memory is compared
before and after each draw, and only values that *drawing* has changed are put back. Sizes are
limited, because this runs for each draw: larger containers are known by their length only.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lockstep._base.digest import digest
from lockstep._base.tracebacks.frames import owner
from lockstep._data.states import OF_PROCESS, generators_of, has_state, is_generator, put_state, take_state

_FORGETFUL = (BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)
"""Classes of PyTorch whose code is known: drawing changes only their generators."""
_MOST_INNER = 64
"""The largest number of items of a container whose items are recorded, too,"""
_MOST_WITHIN = 10_000
"""or of all items inside a container of up to 1,000,"""
_MOST_DEEP = 3
"""and the number of levels of containers."""
_MOST_ITEMS = 1000
_MOST_BYTES = 1 << 16
"""The largest containers (in items) and arrays (in bytes) that are recorded. Of larger ones only
the length is known."""
_MOST_KEEPERS = 1000
_NUMBERS = {bool, int, float, str, type(None)}
_NOTHING = object()


class Content(NamedTuple):
    """The content of a mutable object."""

    holder: Any
    key: Any
    """A value that is equal if and only if the content is."""
    state: Any
    """A copy from which the content can be restored; None: it cannot."""


class Moment(NamedTuple):
    """The memory of a loader's samplers at one moment."""

    bindings: list[dict[str, Any]]
    """The attributes of each keeper."""
    contents: dict[int, Content]
    """The contents of generators and containers, by id."""
    reported: list[str]
    """The digests of the ``state_dict()`` of the keepers that have one."""


class Memory:
    """The memory of a loader's samplers.

    Args:
        loader: a DataLoader.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._keepers: dict[str, Any] = {}
        """The loader, its samplers and their parts, by path."""
        self._helpers = set[int]()
        """The numbers of the keepers that are not iterated. The script may store other things in
        them."""
        self._generators: list[Any] = []
        """The generators in containers of samplers."""
        self._reporting: list[Any] = []
        """The keepers with a ``state_dict()``."""
        self._watched: list[tuple[dict[str, Any], tuple[str, ...] | None]] = []
        """The attributes of each keeper, and the names of the watched ones; None: all."""
        self._bindings: set[tuple[int, str]] = set()
        """The attributes that drawing has changed in this pass: number of the keeper, and name."""
        self._contents: set[int] = set()
        """The ids of the generators and containers that drawing has changed in this pass."""
        self.begin()
        self._at_first: dict[str, dict[str, Any]] = {}
        """Copies of the plain, small attributes at the time of prepare()."""
        self._digests_at_first: dict[str, dict[str, str]] = {}
        for path, keeper in self._keepers.items():
            packed = _packed_attributes(keeper)
            self._digests_at_first[path] = _digests(packed)
            self._at_first[path] = {name: copy.deepcopy(value) for name, value in packed.items() if not _is_large(value)}

    def begin(self) -> None:
        """Begins a pass, in which drawing has changed nothing yet."""
        self._keepers = dict(itertools.islice(_walk(self._loader), _MOST_KEEPERS))
        self._helpers = {
            number for number, keeper in enumerate(self._keepers.values()) if not isinstance(keeper, (Sampler, Iterable))
        }
        self._generators = [keeper for keeper in self._keepers.values() if is_generator(keeper)]
        self._reporting = [keeper for keeper in self._keepers.values() if keeper is not self._loader and has_state(keeper)]
        self._watched = [
            (_attributes(keeper), tuple(own_generators(keeper)) if _is_forgetful(keeper) else None)
            for keeper in self._keepers.values()
        ]
        self._bindings, self._contents = set(), set()

    @property
    def is_empty(self) -> bool:
        """Whether the samplers have no memory at all."""
        return not any(
            own_generators(keeper) if _is_forgetful(keeper) else hasattr(keeper, "__dict__") or has_state(keeper)
            for _, keeper in _walk(self._loader)
        )

    def take(self) -> Moment:
        """Returns the memory of this moment."""
        bindings: list[dict[str, Any]] = []
        contents: dict[int, Content] = {}
        for now, names in self._watched:
            attributes = dict(now) if names is None else {name: now[name] for name in names if name in now}
            bindings.append(attributes)
            for value in attributes.values():
                _add_content(contents, value)
        for generator in self._generators:
            _add_content(contents, generator)
        return Moment(bindings, contents, [digest(keeper.state_dict()) for keeper in self._reporting])

    def note_draw(self, before: Moment, after: Moment) -> None:
        """Notes what drawing has changed."""
        for number, (old, new) in enumerate(zip(before.bindings, after.bindings, strict=True)):
            for name in old.keys() | new.keys():
                if old.get(name, _NOTHING) is not new.get(name, _NOTHING):
                    self._bindings.add((number, name))
        self._contents.update(self._changed(before, after))

    @property
    def held(self) -> set[int]:
        """The ids of the objects with memory: samplers, and their generators and containers."""
        return {id(keeper) for keeper in self._keepers.values() if keeper is not self._loader} | self.take().contents.keys()

    def leave_out(self, held: Collection[int]) -> None:
        """Excludes objects, by their ids, from being put back in this pass."""
        numbers = {number for number, keeper in enumerate(self._keepers.values()) if id(keeper) in held}
        self._bindings = {(number, name) for number, name in self._bindings if number not in numbers}
        self._contents.difference_update(held)

    def put(self, moment: Moment) -> None:
        """Puts back all that drawing has changed in this pass to a moment of the pass."""
        attributes = [getattr(keeper, "__dict__", {}) for keeper in self._keepers.values()]
        # Bindings first: an attribute may have another object, whose content is then written.
        for number, name in self._bindings:
            value = moment.bindings[number].get(name, _NOTHING)
            if value is _NOTHING:
                attributes[number].pop(name, None)
            else:
                attributes[number][name] = value
        for identity in self._contents:
            content = moment.contents.get(identity)
            if content is not None and content.state is not None:
                _write(content)

    def merge(self, shown: Moment, ahead: Sequence[Moment]) -> tuple[list[str], list[str]]:
        """Merges into ``ahead``, the moments of draws ahead, what the script or another loader has
        changed since the memory was put back to ``shown``.

        Returns:
            Descriptions of the changes that conflict with the draws ahead, and of all changes
            except changes of generators, which loaders may share.
        """
        now, conflicts = self.take(), list[str]()
        changed = [
            self._named(number, name)
            for number, (old, new) in enumerate(zip(shown.bindings, now.bindings, strict=True))
            if number not in self._helpers
            for name in (old.keys() | new.keys())
            if not _is_equal(old.get(name, _NOTHING), new.get(name, _NOTHING))
        ]
        for number, name in self._bindings:
            old, new = (moment.bindings[number].get(name, _NOTHING) for moment in (shown, now))
            # Changed since the memory was put back, so by the script or another loader: this
            # sampler has not been drawn from in the meantime.
            if old is not new:
                # If the draws ahead have changed the attribute, too, neither value is right for
                # them.
                if ahead[-1].bindings[number].get(name, _NOTHING) is not old:
                    conflicts.append(self._named(number, name))
                # Otherwise putting back a later moment must not undo the change.
                for moment in ahead:
                    moment.bindings[number][name] = new
        of_helpers = {id(value) for number in self._helpers for value in now.bindings[number].values()}
        for identity in self._changed(shown, now):
            is_ignored = identity in of_helpers or shown.contents[identity].state is None
            if not is_ignored and not is_generator(now.contents[identity].holder):
                changed.append(self._named_content(now, identity))
            if identity in self._contents and shown.contents[identity].state is not None:
                if identity in self._changed(shown, ahead[-1]):
                    conflicts.append(self._named_content(now, identity))
                for moment in ahead:
                    if identity in moment.contents:
                        moment.contents[identity] = now.contents[identity]
        return conflicts, changed

    def not_put_back(self, shown: Moment, newest: Moment) -> list[Content]:
        """Returns the contents of ``newest`` that cannot have been put back to ``shown``."""
        return [
            newest.contents[identity] for identity in self._changed(shown, newest) if shown.contents[identity].state is None
        ]

    def has_reported(self, shown: Moment, newest: Moment) -> bool:
        """Returns whether a sampler still reports its state of ``newest`` after it was put back to
        ``shown``: it has hidden memory."""
        if shown.reported == newest.reported:
            return False
        pairs = zip(self._reporting, shown.reported, newest.reported, strict=True)
        return any(then != ahead == digest(keeper.state_dict()) for keeper, then, ahead in pairs)

    def gone_on(self, lost: Sequence[Content], before: Moment, after: Moment) -> list[str]:
        """Returns descriptions of the objects from the pass before with which the samplers
        continue, although they were not put back. (Many samplers make their objects again in each
        pass, and then nothing is lost.)

        Args:
            lost: the contents that were not put back.
            before: the memory after the pass before.
            after: the memory after the first draw of this pass.
        """
        kept = [
            self._named_content(after, id(content.holder))
            for content in lost
            if id(content.holder) in after.contents and after.contents[id(content.holder)].holder is content.holder
        ]
        iterators = [
            self._named(number, name)
            for number, attributes in enumerate(before.bindings)
            for name, value in attributes.items()
            if after.bindings[number].get(name) is value and _is_opaque_iterator(value)
        ]
        return kept + iterators

    @property
    def reporting(self) -> list[str]:
        """Descriptions of the samplers with a ``state_dict()``."""
        return [f"{type(keeper).__name__}.state_dict()" for keeper in self._reporting]

    def is_drawn_between(self, one: Moment, other: Moment) -> bool:
        """Returns whether a generator has different states at the two moments."""
        return any(is_generator(other.contents[identity].holder) for identity in self._changed(one, other))

    def put_generators(self, now: Moment, moments: Sequence[Moment]) -> None:
        """Puts all generators to their states at ``now``, also in the memory of other moments."""
        for identity, content in now.contents.items():
            if is_generator(content.holder):
                _write(content)
                for moment in moments:
                    moment.contents[identity] = content

    def _changed(self, one: Moment, other: Moment) -> list[int]:
        return [
            identity
            for identity, content in other.contents.items()
            if identity in one.contents and not _is_same(content.key, one.contents[identity].key)
        ]

    def _named(self, number: int, name: str) -> str:
        return f"{type([*self._keepers.values()][number]).__name__}.{name}"

    def _named_content(self, moment: Moment, identity: int) -> str:
        holder = moment.contents[identity].holder
        for number, attributes in enumerate(moment.bindings):
            for name, value in attributes.items():
                if value is holder:
                    return self._named(number, name)
        return f"a {type(holder).__name__} of a sampler"

    # In checkpoints

    def state(self) -> dict[str, Any]:
        """Returns a tree of plain values and tensors from which ``load_state`` restores the memory
        in another launch: for each keeper its own state, its generators, and the plain attributes
        that have changed since prepare()."""
        return {path: self._state_of(path, keeper) for path, keeper in self._keepers.items()}

    def compared(self) -> list[Any]:
        """Returns what must be the same on every rank. Attributes are left out, since they may
        contain for example the time."""
        generators = [take_state(each) for keeper in self._keepers.values() for each in own_generators(keeper).values()]
        return generators + [take_state(keeper) for keeper in self._keepers.values() if _gives_state(keeper)]

    def _state_of(self, path: str, keeper: Any) -> dict[str, Any]:
        state: dict[str, Any] = {
            "generators": {name: take_state(generator) for name, generator in own_generators(keeper).items()},
            "attributes": self._changed_attributes(path, keeper),
        }
        if _gives_state(keeper):
            state["own"] = take_state(keeper)
        return state

    def _changed_attributes(self, path: str, keeper: Any) -> dict[str, Any]:
        packed, at_first = _packed_attributes(keeper), self._digests_at_first.get(path, {})
        found = _digests(packed)
        return {name: copy.deepcopy(packed[name]) for name in found if found[name] != at_first.get(name)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores a result of ``state``, of this or another launch."""
        for path, kept in state.items():
            keeper = self._keepers.get(path)
            if keeper is None:
                continue
            attributes = kept["attributes"]
            if "own" in kept:
                # Some classes set another attribute in load_state_dict(), so that the next pass
                # begins at the loaded position. An uninterrupted run would not have that attribute
                # set.
                before = self._changed_attributes(path, keeper)
                put_state(keeper, kept["own"])
                at_first = self._at_first.get(path, {})
                by_this = [
                    name for name in self._changed_attributes(path, keeper) if name not in before and name in at_first
                ]
                attributes = {**{name: at_first[name] for name in by_this}, **attributes}
            for name, value in attributes.items():
                _put_attribute(keeper, name, _unpacked(value))
            generators = own_generators(keeper)
            for name, value in kept["generators"].items():
                if name in generators:
                    put_state(generators[name], value)

    def load_attributes(self, state: dict[str, Any]) -> None:
        """Restores the attributes in a result of ``state`` that differ now."""
        for path, kept in state.items():
            keeper = self._keepers.get(path)
            found = {} if keeper is None else _digests(_packed_attributes(keeper))
            for name, value in kept["attributes"].items() if keeper is not None else ():
                if found.get(name) != digest(value):
                    _put_attribute(keeper, name, _unpacked(value))


def _gives_state(keeper: Any) -> bool:
    return has_state(keeper) or is_generator(keeper)


def _put_attribute(keeper: Any, name: str, value: Any) -> None:
    """Sets an attribute, in place if possible, since the script may have a reference to the
    object."""
    # By vars(), since __setattr__ of a class or a property may have effects.
    now = vars(keeper).get(name)
    fits = type(now) is type(value) and getattr(now, "shape", None) == getattr(value, "shape", None)
    if fits and isinstance(value, (list, dict, set, deque, numpy.ndarray, Tensor)):
        _write(Content(now, None, value))
    else:
        vars(keeper)[name] = value


def _walk(loader: DataLoader[Any]) -> Iterator[tuple[str, Any]]:
    """Yields the loader, its samplers, and the samplers and iterators inside them, each once, with
    their paths."""
    seen = {id(loader)}
    yield "loader", loader
    found = deque([("sampler", loader.sampler), ("batch_sampler", loader.batch_sampler)])
    while found:
        path, item = found.popleft()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        yield path, item
        for name, value in getattr(item, "__dict__", {}).items():
            inner = _inside(f"{path}.{name}", value)
            found.extend(
                (place, part)
                for place, part in inner
                if name in _SAMPLERS or _is_part(part, item) or (is_generator(part) and part is not value)
            )


_SAMPLERS = ("sampler", "batch_sampler")


def _inside(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields a value, or the items of a container of objects, with their paths."""
    if not isinstance(value, (list, tuple, dict)) or len(value) > _MOST_ITEMS or depth == _MOST_DEEP:
        yield path, value
        return
    if set(map(type, value.values() if isinstance(value, dict) else value)) <= _NUMBERS:
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _inside(f"{path}[{key!r}]", item, depth + 1)


def _is_part(value: Any, sampler: Any) -> bool:
    """Returns whether an attribute of a sampler is a sampler, another object that is iterated, or
    an object of a class in the script, but not data."""
    kind: Any = type(value)
    if isinstance(value, Sampler):
        return True
    is_data = isinstance(value, (Dataset, DataLoader, Tensor, type)) or hasattr(kind, "__getitem__")
    if is_data or not hasattr(value, "__dict__"):
        return False
    is_helper = type(sampler) not in _FORGETFUL and not isinstance(value, (torch.nn.Module, torch.optim.Optimizer))
    return hasattr(kind, "__iter__") or hasattr(kind, "__next__") or (is_helper and _is_of_script(kind))


@functools.lru_cache(maxsize=1024)
def _is_of_script(kind: Any) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (file is not None and owner(file) == "user")


def _packed_attributes(keeper: Any) -> dict[str, Any]:
    """Returns the attributes that are plain values or arrays, or containers of these, in the form
    of checkpoints."""
    if isinstance(keeper, DataLoader):
        return {}
    # Only the length of the data source counts, and it may be a dataset of any size.
    passed_over = ("data_source",) if type(keeper) in (RandomSampler, SequentialSampler) else ()
    packed = {name: _packed(value) for name, value in _attributes(keeper).items() if name not in passed_over}
    return {name: value for name, value in packed.items() if value is not _NOTHING}


def _packed(value: Any, depth: int = 0) -> Any:
    """Returns a value in the form of checkpoints, with long lists of numbers as arrays;
    ``_NOTHING``: checkpoints do not contain it."""
    kind = type(value)
    if kind in (bool, int, float, str, type(None)):
        return value
    if kind is numpy.ndarray:
        return value if value.dtype.kind in "biuf" else _NOTHING
    if kind is Tensor:
        can = value.layout == torch.strided and not (value.requires_grad or value.is_nested or value.is_meta)
        return value.detach() if can else _NOTHING
    if kind not in _CONTAINERS.values() or depth == _MOST_DEEP:
        return _NOTHING
    if len(value) > _MOST_INNER:
        numbers = _numbers(value)
        if numbers is not None:
            return {_KIND: kind.__name__, "maxlen": getattr(value, "maxlen", None), **numbers}
    if len(value) > (_MOST_INNER if depth else _MOST_ITEMS):
        return _NOTHING
    if kind is dict:
        items = {key: _packed(item, depth + 1) for key, item in value.items()}
        is_whole = all(type(key) in (int, str) for key in items) and not any(item is _NOTHING for item in items.values())
        return items if is_whole else _NOTHING
    parts = [_packed(item, depth + 1) for item in value]
    if any(part is _NOTHING for part in parts):
        return _NOTHING
    return deque(parts, value.maxlen) if kind is deque else kind(parts)


_CONTAINERS: dict[str, Any] = {kind.__name__: kind for kind in (list, tuple, deque, set, dict)}
_SIZED = {*_CONTAINERS.values()}
_KIND = "container of numbers"


def _numbers(value: Any) -> dict[str, Any] | None:
    """Returns the items of a container, and the keys of a dict, as arrays; None: they are not all
    of one type of number."""
    parts = (
        {"keys": list(value.keys()), "items": list(value.values())} if isinstance(value, dict) else {"items": list(value)}
    )
    arrays = {name: numpy.array(items) for name, items in parts.items() if set(map(type, items)) in ({int}, {float}, {bool})}
    # Integers of more than 64 bits make arrays of objects.
    fit = len(arrays) == len(parts) and all(array.dtype.kind in "bif" for array in arrays.values())
    return arrays if fit else None


def _unpacked(value: Any) -> Any:
    """Returns a copy of the argument of ``_packed``."""
    if isinstance(value, (numpy.ndarray, Tensor)):
        return copy.deepcopy(value)
    if isinstance(value, dict) and _KIND in value:
        kind, items = _CONTAINERS[value[_KIND]], value["items"].tolist()
        if kind is dict:
            return dict(zip(value["keys"].tolist(), items, strict=True))
        return deque(items, value["maxlen"]) if kind is deque else kind(items)
    if isinstance(value, dict):
        return {key: _unpacked(item) for key, item in value.items()}
    if isinstance(value, deque):
        return deque(map(_unpacked, value), value.maxlen)
    return type(value)(map(_unpacked, value)) if isinstance(value, (list, tuple, set)) else value


def _is_large(value: Any) -> bool:
    if isinstance(value, dict) and _KIND in value:
        return True
    return isinstance(value, (numpy.ndarray, Tensor)) and value.nbytes > _MOST_BYTES


def _digests(attributes: dict[str, Any]) -> dict[str, str]:
    return {name: digest(value) for name, value in attributes.items()}


def _attributes(keeper: Any) -> dict[str, Any]:
    return {} if is_generator(keeper) else getattr(keeper, "__dict__", {})


def _is_forgetful(keeper: Any) -> bool:
    """Returns whether drawing changes only the generators of a keeper. (The loader itself is not
    iterated.)"""
    return type(keeper) in _FORGETFUL or isinstance(keeper, DataLoader)


def own_generators(keeper: Any) -> dict[str, Any]:
    """Returns the generators among an object's attributes, except the generators of the process,
    which are reseeded at each draw."""
    return {name: generator for name, generator in generators_of(keeper).items() if id(generator) not in OF_PROCESS}


# Contents


def _add_content(contents: dict[int, Content], value: Any, depth: int = 0) -> None:
    kind: Any = type(value)
    read = _reader(kind)
    if read is None or id(value) in contents or id(value) in OF_PROCESS:
        return
    key, state = read(value)
    contents[id(value)] = Content(value, key, state)
    if depth < _MOST_DEEP and isinstance(value, (list, tuple, deque, dict)) and len(value) <= _MOST_ITEMS:
        items = value.values() if isinstance(value, dict) else value
        if len(value) <= _MOST_INNER or sum(len(item) for item in items if type(item) in _SIZED) <= _MOST_WITHIN:
            for item in items:
                _add_content(contents, item, depth + 1)


@functools.lru_cache(maxsize=1024)
def _reader(kind: Any) -> Callable[[Any], tuple[Any, Any]] | None:
    """Returns the function that reads key and state of the content of a class; None: its content is
    unknown."""
    if issubclass(kind, torch.Generator):
        return _read_torch
    if issubclass(kind, (random.Random, numpy.random.Generator, numpy.random.RandomState)):
        return _read_generator
    if issubclass(kind, numpy.ndarray):
        return _read_array
    if issubclass(kind, Tensor):
        return _read_tensor
    if issubclass(kind, dict):
        return _read_dict
    return _read_items if issubclass(kind, (list, tuple, deque, set, bytearray)) else None


def _read_torch(generator: torch.Generator) -> tuple[Any, Any]:
    state = generator.get_state()
    return state, state


def _read_generator(generator: Any) -> tuple[Any, Any]:
    state = take_state(generator)
    return _frozen(state), state


def _read_array(array: Any) -> tuple[Any, Any]:
    return (array.tobytes(), array.copy()) if array.nbytes <= _MOST_BYTES else (array.nbytes, None)


def _read_tensor(tensor: Tensor) -> tuple[Any, Any]:
    if not tensor.is_cpu or tensor.layout != torch.strided or tensor.is_nested or tensor.nbytes > _MOST_BYTES:
        return tuple(tensor.shape), None
    copied = tensor.detach().clone()
    return copied.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), copied


def _read_items(items: Any) -> tuple[Any, Any]:
    # Items are compared by identity: comparing values could be costly, or run code of the script.
    return (list(map(id, items)), list(items)) if len(items) <= _MOST_ITEMS else (len(items), None)


def _read_dict(items: dict[Any, Any]) -> tuple[Any, Any]:
    if len(items) > _MOST_ITEMS:
        return len(items), None
    return list(map(id, itertools.chain.from_iterable(items.items()))), dict(items)


def _is_equal(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and type(value) in (int, float, str) and bool(value == other))


def _is_same(key: Any, other: Any) -> bool:
    return torch.equal(key, other) if isinstance(key, Tensor) else bool(key == other)


def _frozen(state: Any) -> Any:
    if isinstance(state, dict):
        return [(name, _frozen(value)) for name, value in state.items()]
    return state.tobytes() if isinstance(state, numpy.ndarray) else state


def _write(content: Content) -> None:
    holder, _, state = content
    if is_generator(holder):
        put_state(holder, state)
    elif isinstance(holder, numpy.ndarray):
        holder[...] = state
    elif isinstance(holder, Tensor):
        with torch.no_grad():
            holder.copy_(state)
    elif isinstance(holder, (list, bytearray)):
        holder[:] = state
    elif isinstance(holder, (dict, set)):
        holder.clear()
        holder.update(state)
    elif isinstance(holder, deque):
        holder.clear()
        holder.extend(state)


def _is_opaque_iterator(value: Any) -> bool:
    """Returns whether the position of an iterator cannot be read, as with a generator function or
    ``iter()`` of a list."""
    return hasattr(type(value), "__next__") and not hasattr(value, "__dict__")
