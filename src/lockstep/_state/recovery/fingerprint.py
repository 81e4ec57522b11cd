"""The digests of a run's state, computed once a step for all that need them: the comparison of
ranks, and the digest journal.

A digest is a sum over the bits of a tensor, not a cryptographic hash: it runs on the device at the
speed of its memory, and only numbers are copied to the CPU. All sums of a step are read in one
copy, since each read waits for the device, and in a later step if nothing needs them now.
"""

from __future__ import annotations

import hashlib
import itertools
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from lockstep._base.trees import tensors_in
from lockstep._base.versions import version
from lockstep._data.batches import map_tensors
from lockstep._data.values import all_on_cpu
from lockstep._prepare.state_adapters import OPTION
from lockstep._state.recovery.run_state import RunState
from lockstep._world.comm.bit_sums import unread_bit_sums
from lockstep._world.comm.dtensors import is_dtensor

Sums = dict[str, dict[str, Any]]
"""A number or text for each part of the state of each object of the run. They are equal if and only
if the bits are equal (except for sums that agree by chance)."""

_Extra = tuple[Sequence[Tensor], list[Any]]
"""Numbers to read together with the next digests, and the list for the results."""


class Reading:
    """The digests of some state as it was when this object was made.

    Args:
        compared: the object, the part of its state, and the value: see ``RunState.compared``.
        extra: further numbers to read.
    """

    def __init__(self, compared: Sequence[tuple[str, str, Any]], extra: Sequence[_Extra] = ()) -> None:
        plain = [item for item in compared if not isinstance(item[2], Tensor)]
        tensors = [item for item in compared if isinstance(item[2], Tensor)]
        inside = list(tensors_in([value for _, _, value in plain]))
        self._unread = unread_bit_sums([*inside, *(tensor for _, _, tensor in tensors)])
        self._extra = extra
        # The order is part of the digests of earlier launches: plain values, then tensors.
        self._places = [(owner, name) for owner, name, _ in (*plain, *tensors)]
        bits = self._read() if inside else iter(())
        # Now, since a step may change them: the script's learning rates, for example.
        self._texts = [_text(value, bits) for _, _, value in plain]
        self._bits = bits if inside else None
        self._sums: Sums | None = None

    def _read(self) -> Iterator[int]:
        read = iter(all_on_cpu([*(number for numbers, _ in self._extra for number in numbers), *self._unread.vectors]))
        for numbers, found in self._extra:
            found += itertools.islice(read, len(numbers))
        return iter(self._unread.in_order(vector.tolist() for vector in read))

    def sums(self) -> Sums:
        """Returns the digests. The first call waits for the devices. Local."""
        if self._sums is None:
            self._sums = {}
            bits = self._read() if self._bits is None else self._bits
            for (owner, name), value in zip(self._places, itertools.chain(self._texts, bits), strict=True):
                self._sums.setdefault(owner, {})[name] = value
        return self._sums


class Fingerprint:
    """The digests of all state that must be the same on every rank, and at every world size if the
    strategy promises that.

    Args:
        state: the state of the run.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._known: tuple[int, Reading] | None = None
        self._wanted: list[Callable[[int], bool]] = []
        self._extra: list[_Extra] = []

    def want(self, is_due: Callable[[int], bool]) -> None:
        """Requests the digests after the steps for which ``is_due`` returns True. The ranks are
        also compared after these steps. Every rank must call it, with the same function of the step
        alone."""
        self._wanted.append(is_due)

    def is_wanted(self, step: int) -> bool:
        """Returns whether the digests after this step were requested. The same on every rank."""
        for is_due in self._wanted:  # noqa: SIM110 (called in each step, where any() takes three times as long)
            if is_due(step):
                return True
        return False

    def read_together(self, numbers: Sequence[Tensor]) -> list[Any]:
        """Returns a list that the next reading fills with these numbers, which are float64 or int64
        tensors. Those with dimensions are tensors there, too. So one wait for a device serves them
        and the digests. Local."""
        found: list[Any] = []
        self._extra.append((numbers, found))
        return found

    def reading_after(self, step: int) -> Reading:
        """Returns the digests after a step, perhaps still to be read, computed once for all
        listeners that request them. They are of whole tensors, also of tensors that are cut over
        the ranks. Every rank must call it."""
        if self._known is None or self._known[0] != step:
            extra, self._extra = self._extra, []
            self._known = (step, self._read(list(self._state.compared()), extra))
        return self._known[1]

    def after(self, step: int) -> Sums:
        """Returns the digests of ``reading_after``. Every rank must call it."""
        return self.reading_after(step).sums()

    def whole(self) -> Sums:
        """Returns the digests of the current state, of whole tensors, also of tensors that are cut
        over the ranks. Every rank must call it."""
        return self._read(list(self._state.compared())).sums()

    def now(self) -> Sums:
        """Returns the digests of the current state, without the tensors that are cut over the
        ranks. Local."""
        items = [item for item in self._state.compared() if not is_dtensor(item[2])]
        return self._read([(owner, name, map_tensors(_unless_cut, value)) for owner, name, value in items]).sums()

    def _read(self, compared: Sequence[tuple[str, str, Any]], extra: Sequence[_Extra] = ()) -> Reading:
        return Reading(compared, extra)

    def leaves(self, described: str) -> dict[str, str]:
        """Returns the plain values in a part of the state, by their places in it, for the message
        about a difference. Local.

        Args:
            described: the part, as ``PART of OWNER``.
        """
        for owner, part, value in self._state.compared():
            if f"{part} of {owner}" == described and not isinstance(value, Tensor):
                return dict(_leaves(value, "param_groups" if part == OPTION else ""))
        return {}

    def num_writes(self) -> list[int]:
        """Returns the number of in-place writes to each compared tensor. Writing the same numbers
        again counts."""
        tensors = (value for _, _, value in self._state.compared() if isinstance(value, Tensor))
        return [0 if tensor.is_inference() else version(tensor) for tensor in tensors]


def short_digest(sums: Mapping[str, Any]) -> str:
    """Returns a digest of numbers and texts by name: 16 hexadecimal digits."""
    return hashlib.blake2b(repr(list(sums.items())).encode(), digest_size=8).hexdigest()


def _unless_cut(tensor: Tensor) -> Tensor | None:
    return None if is_dtensor(tensor) else tensor


def _leaves(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{place}[{number}]")
        yield f"len({place})", str(len(value))
    elif isinstance(value, Tensor):
        if not is_dtensor(value):
            yield place, reprlib.repr(value.tolist())
    else:
        yield place, reprlib.repr(value)


def _text(value: Any, bits: Iterator[int]) -> str:
    """Returns a value as text. ``bits`` yields the sums of the bits of the tensors in it, and then
    of those in later values."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {[next(bits)]}"
    if isinstance(value, dict):
        return str({str(key): _text(item, bits) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return str([_text(item, bits) for item in value])
    return repr(value) if isinstance(value, (bool, int, float, str, bytes, type(None))) else type(value).__name__
