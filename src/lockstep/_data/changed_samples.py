"""Detects samples of the dataset that the script changes in place: later reads get the changed
values.

The number of changes of a sample then depends on the rank that had it, on the number of loader
workers (each has a copy of the dataset), and on the step of a resume. In steps 1, 2, 4, 8, ... the
fetched samples are compared before and after the step's body, and the arguments of a ``collate_fn``
before and after its call. A change counts if the memory, dict, list or object can be reached from
the dataset. A batch that was collated from copies may be changed.
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
"""The number of objects of a batch that are compared."""
_MOST_OWNED = 200_000
"""The number of objects of a dataset after which a search ends."""
_MOST_SEARCHES = 3
"""The number of searches without a result after which there are no more: the script changes
copies."""
_MOST_ARRAYS, _COMPARED_BYTES = 64, 65536
"""The number of NumPy arrays that are compared, and the bytes of each. Arrays have no version
counter, unlike tensors."""
_REMEDY = (
    "Write to a copy: `x = x * 2` for `x *= 2`, `target = {**target, 'boxes': boxes}` for `target['boxes'] = boxes`, "
    "`x = x.clone()` first, or copy.deepcopy(sample)."
)


class Snapshot:
    """The parts of samples, before code of the script gets them."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self._tensors: list[tuple[Held, int]] = []
        self._arrays: list[tuple[Held, int]] = []
        self._holders: list[tuple[Held, dict[Key, Any], int]] = []
        """Dicts, lists and objects, with references to their items: an id is unique only among
        living objects."""
        for held in walk(map(root, samples), _is_searched, most=_MOST_PARTS):
            value = held.value
            if isinstance(value, Tensor):
                # Inference tensors have no versions, and training cannot write to them.
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
        """Yields the parts that were changed since. (A new key is no change: earlier reads still
        get the same values.)"""
        yield from (held for held, before in self._tensors if version(held.value) != before)
        yield from (held for held, before in self._arrays if _checksum(held.value) != before)
        for held, before, size in self._holders:
            now = dict(children(held.value))
            is_longer = isinstance(held.value, list) and len(now) != size
            if is_longer or next(_others(before, now), None) is not None:
                yield held

    def places(self, changed: Held) -> list[Key]:
        """Returns the places at which a dict, list or object was changed."""
        before = next((items for held, items, _ in self._holders if held is changed), {})
        return list(_others(before, dict(children(changed.value))))

    def place(self, changed: Held) -> str:
        """Returns the first of its ``places``, in the notation of the script."""
        key = next(iter(self.places(changed)), None)
        return "" if key is None else f".{key}" if isinstance(key, str) else f"[{key[0]!r}]"


class ChangedSamples:
    """The watch over samples, which warns once.

    Args:
        dataset: the dataset, or the iterable of ready batches.
        speaks: whether to watch at all: on one rank.
        name: the name of ``dataset``, for the warning.
    """

    def __init__(self, dataset: Any, *, speaks: bool, name: str = "dataset") -> None:
        self._dataset, self._name = dataset, name
        self._looks = PowersOfTwo()
        self._num_vain = 0
        self._found: tuple[Snapshot, str] | None = None
        """The changed part of the dataset as the script left it, and the warning."""
        self.next: float = 0 if speaks else math.inf
        """The first step, or batch, that must be watched."""

    def look(self, number: int, samples: Sequence[Any]) -> Snapshot | None:
        """Returns a snapshot of samples before the script gets them, if that is due.

        Args:
            number: the number of the step, or batch.
            samples: the samples, alone or one item per shard.
        """
        # One worker of one rank is enough: all run the same code.
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
            self._note_vain()  # a buffer that is refilled for each batch
        is_due = self._looks.take(number)
        self.next = max(self._looks.next, self.next if math.isinf(self.next) else number + 1)
        return Snapshot(samples) if is_due else None

    def compare(self, before: Snapshot, what: Callable[[], str], again: Callable[[], bool] | None = None) -> None:
        """Notes whether code of the script has changed a part of the dataset. ``what``: returns the
        name of the code. ``again``: returns whether a repetition would have another result, which
        ``row['text'] = row['text'].lower()`` would not have."""
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
            f"WARNING: {what} writes in place to samples of {self._name} ({type(self._dataset).__name__}): the {kind} in "
            f"{_behind('samples', part)} is {_behind(self._name, own)} itself, which later reads return changed. Results "
            f"depend on the number of processes and loader workers, and on resumes. {_REMEDY}"
        )


def changes_again(samples: Any, function: Callable[[Any], Any], result: Any) -> bool:
    """Returns whether a second call of a function on the samples changes more of them or returns
    another result. It is called with copies of their dicts, lists and objects, and with the same
    tensors and arrays, which it has not changed."""
    parts = list(walk([root(samples)], _is_searched, most=_MOST_PARTS))
    if len(parts) >= _MOST_PARTS:
        return True
    try:
        copied = copy.deepcopy(samples, {id(held.value): held.value for held in parts if not _is_searched(held.value)})
        before = Snapshot([copied])
        return digest(function(copied)) != digest(result) or next(before.changed(), None) is not None
    except Exception:  # it does not accept the samples that it has changed
        return True


def calling_line() -> str:
    """Returns the running line of the script, for messages."""
    frame = inspect.currentframe()
    while frame is not None and owner(frame.f_code.co_filename) != "user":
        frame = frame.f_back
    return "the loop" if frame is None else f"the loop at {frame.f_code.co_filename}:{frame.f_lineno}"


def definition_of(function: Any) -> str:
    """Returns a function and its first line, for messages."""
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        path, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):  # for example a callable object
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
    """Returns whether two values are the same or equal. A conversion may make an equal value, and
    then changes nothing when it is repeated."""
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
    """Returns the first changed part that is in the dataset, and its place there."""
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
    """Returns the first address of a tensor or array on the host, and the one after its last."""
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
