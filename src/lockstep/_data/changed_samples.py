"""Samples that the script writes to in place, and that belong to its data set: later reads get what
was written.

How often a sample has been written to then depends on which rank had it, on how many loader workers
there are, and on where a run was resumed. In steps 1, 2, 4, 8, ... what was fetched is compared
with what it is when the step's body has run, and what a ``collate_fn`` got with what it leaves
behind. A change counts if the memory, dict, list or object can be reached from the data set: a
batch that was collated from copies is the script's to write to.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from lockstep._base.digest import digest
from lockstep._base.held import Held, Key, children, root, walk
from lockstep._base.stopping import say
from lockstep._base.tracebacks.frames import owner
from lockstep._base.versions import version
from lockstep._plan.powers_of_two import PowersOfTwo

_MOST_PARTS = 4096
"""Objects of a batch that are compared."""
_MOST_OWNED = 200_000
"""Objects of a data set after which the search for what was changed ends."""
_MOST_SEARCHES = 3
"""Searches that find nothing, after which none is made: the script writes to copies."""
_MOST_ARRAYS, _COMPARED_BYTES = 64, 65536
"""NumPy arrays that are compared, and bytes of each: an array does not count its changes, as
tensors do."""
_REMEDY = (
    "Write to a copy: `x = x * 2` for `x *= 2`, `target = {**target, 'boxes': boxes}` for `target['boxes'] = boxes`, "
    "`x = x.clone()` first, or copy.deepcopy(sample)."
)


class Snapshot:
    """What samples are made of, before code of the script gets them."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self._tensors: list[tuple[Held, int]] = []
        self._arrays: list[tuple[Held, int]] = []
        self._holders: list[tuple[Held, dict[Key, Any], int]] = []
        """Dicts, lists and objects, with what they hold, which is kept: an id is unique only among
        living objects."""
        for held in walk(map(root, samples), _is_searched, most=_MOST_PARTS):
            value = held.value
            if isinstance(value, Tensor):
                # such have no versions, and cannot be written to in a training
                if value.is_inference():
                    continue
                self._tensors.append((held, version(value)))
            elif _is_array(value):
                if len(self._arrays) < _MOST_ARRAYS:
                    self._arrays.append((held, _checksum(value)))
            elif not isinstance(value, tuple) and _is_searched(value):
                items = dict(children(value))
                self._holders.append((held, items, len(items)))

    def changed(self) -> Iterator[Held]:
        """What was changed since. (A key that is added is no change: what was read before is still
        there.)"""
        yield from (held for held, before in self._tensors if version(held.value) != before)
        yield from (held for held, before in self._arrays if _checksum(held.value) != before)
        for held, before, size in self._holders:
            now = dict(children(held.value))
            is_longer = isinstance(held.value, list) and len(now) != size
            if is_longer or next(_others(before, now), None) is not None:
                yield held

    def places(self, changed: Held) -> list[Key]:
        """Where one of the changed, a dict, list or object, was changed."""
        before = next((items for held, items, _ in self._holders if held is changed), {})
        return list(_others(before, dict(children(changed.value))))

    def place(self, changed: Held) -> str:
        """The first of its ``places``, as the script may write it."""
        key = next(iter(self.places(changed)), None)
        return "" if key is None else f".{key}" if isinstance(key, str) else f"[{key[0]!r}]"


class ChangedSamples:
    """Looks at samples, and warns once.

    Args:
        dataset: the data set, or the iterable of ready batches.
        speaks: whether to look at all: on one rank.
        name: of what it is, for the warning.
    """

    def __init__(self, dataset: Any, *, speaks: bool, name: str = "dataset") -> None:
        self._dataset, self._name = dataset, name
        self._looks = PowersOfTwo()
        self._num_vain = 0
        self._found: tuple[Snapshot, str] | None = None
        """What the data set's own was left as, and the warning."""
        self.next: float = 0 if speaks else math.inf
        """The first step, or batch, for which there is something to do."""

    def look(self, number: int, samples: Sequence[Any]) -> Snapshot | None:
        """What samples are before the script gets them, if they are to be looked at.

        Args:
            number: of the step, or batch.
            samples: each a sample, or those of a shard.
        """
        worker = get_worker_info()
        if worker is not None and worker.id > 0:
            self.next = math.inf
            return None
        if self._found is not None:
            before, words = self._found
            self._found = None
            if next(before.changed(), None) is None:
                say(words)
                self.next = math.inf
                return None
            self._note_vain()  # refilled: a buffer, which is used for each batch
        is_due = self._looks.take(number)
        self.next = max(self._looks.next, self.next if math.isinf(self.next) else number + 1)
        return Snapshot(samples) if is_due else None

    def compare(self, before: Snapshot, what: Callable[[], str], again: Callable[[], bool] | None = None) -> None:
        """Note whether code of the script has changed what is the data set's own. ``what``: the
        code. ``again``: whether another run, if one is possible, would have another outcome: that
        of ``row['text'] = row['text'].lower()`` would not."""
        changed = list(before.changed())
        found = _first_owned(changed, self._dataset) if changed else None
        if found is not None and again is not None and all(_is_searched(held.value) for held in changed) and not again():
            found = None
        if found is not None:
            self._found = Snapshot([found[1].value]), self._words(*found, what())
            self.next = 0
        elif changed:
            self._note_vain()

    def _note_vain(self) -> None:
        self._num_vain += 1
        if self._num_vain >= _MOST_SEARCHES:
            self.next = math.inf

    def _words(self, part: Held, own: Held, what: str) -> str:
        kind = f"tensor of shape {tuple(part.value.shape)}" if isinstance(part.value, Tensor) else type(part.value).__name__
        return (
            f"WARNING: {what} writes in place to samples that {self._name} ({type(self._dataset).__name__}) keeps: the {kind} "
            f"that it gets as {_behind('samples', part)} is {_behind(self._name, own)} itself, which is read again as it was "
            "left. How often it has been written to depends on the number of processes and of loader workers, and on where the "
            f"run was resumed, and so does the result. {_REMEDY}"
        )


def changes_again(samples: Any, function: Callable[[Any], Any], result: Any) -> bool:
    """Whether a function that has got samples, and returned this, changes more of them or returns
    something else when it is called again: on copies of their dicts, lists and objects, with the
    same tensors and arrays, which it has left unchanged."""
    parts = list(walk([root(samples)], _is_searched, most=_MOST_PARTS))
    if len(parts) >= _MOST_PARTS:
        return True
    try:
        copied = copy.deepcopy(samples, {id(held.value): held.value for held in parts if not _is_searched(held.value)})
        before = Snapshot([copied])
        return digest(function(copied)) != digest(result) or next(before.changed(), None) is not None
    except Exception:  # it cannot take what it has left
        return True


def calling_line() -> str:
    """The line of the script that is running, in words."""
    frame = inspect.currentframe()
    while frame is not None and owner(frame.f_code.co_filename) != "user":
        frame = frame.f_back
    return "the loop" if frame is None else f"the loop at {frame.f_code.co_filename}:{frame.f_lineno}"


def definition_of(function: Any) -> str:
    """A function and the line where it begins, in words."""
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        path, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):  # an object that can be called, say
        return f"the collate_fn {name}"
    return f"the collate_fn {name} at {path}:{line}"


def _is_searched(value: Any) -> bool:
    # (An image of PIL loads itself when it is first used.)
    is_foreign = str(type(value).__module__).partition(".")[0] in ("lockstep", "PIL")
    return not (is_foreign or isinstance(value, (Tensor, torch.nn.Module)) or _is_array(value))


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _checksum(array: Any) -> int:
    some = array.reshape(-1)[: _COMPARED_BYTES // max(1, array.itemsize)]
    return 0 if array.dtype.hasobject else zlib.crc32(some.tobytes())


def _others(before: dict[Key, Any], now: dict[Key, Any]) -> Iterator[Key]:
    return (key for key, item in before.items() if key not in now or not _is_same(item, now[key]))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are one, or equal, as after a conversion that changes nothing the next
    time."""
    if one is other:
        return True
    if type(one) is type(other) and not isinstance(one, Tensor) and not _is_array(one):
        try:
            return bool(one == other)
        except Exception:  # of whatever class of the script
            return False
    try:
        first, second = torch.as_tensor(one).cpu(), torch.as_tensor(other).cpu()
        return first.shape == second.shape and bool((first == second).all())
    except Exception:  # no tensors
        return False


def _first_owned(changed: list[Held], dataset: Any) -> tuple[Held, Held] | None:
    """The first of the changed that the data set holds, and where."""
    by_id = {id(held.value): held for held in changed}
    by_storage = {place: held for held in changed if (place := _storage(held.value)) is not None}
    arrays = [(_memory(held.value), held) for held in changed if _is_array(held.value) or isinstance(held.value, Tensor)]
    for own in walk([root(dataset)], _is_searched, most=_MOST_OWNED):
        value = own.value
        if id(value) in by_id:
            return by_id[id(value)], own
        if isinstance(value, Tensor):
            place = _storage(value)
            if place in by_storage:
                return by_storage[place], own
        if _is_array(value) or isinstance(value, Tensor):
            begin, end = _memory(value)
            for (first, last), held in arrays:
                if begin < end and first < end and begin < last:
                    return held, own
    return None


def _storage(value: Any) -> int | None:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type == "meta":
        return None
    return value.untyped_storage().data_ptr() or None


def _memory(value: Any) -> tuple[int, int]:
    """The addresses from which to which a tensor or array on the host may be."""
    if isinstance(value, Tensor):
        if not value.is_cpu or value.layout != torch.strided or not value.numel():
            return 0, 0
        begin = value.data_ptr()
        reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        return begin, begin + (reach + 1) * value.element_size()
    base = value
    if not base.size:
        return 0, 0
    begin = base.__array_interface__["data"][0]
    strides = [(size - 1) * stride for size, stride in zip(base.shape, base.strides, strict=True)]
    return begin + sum(s for s in strides if s < 0), begin + sum(s for s in strides if s > 0) + base.itemsize


def _behind(name: str, held: Held) -> str:
    path = held.path
    return f"{name}{path}" if path.startswith("[") or not path else f"{name}.{path}"
