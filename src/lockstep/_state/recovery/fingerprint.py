"""The digests of a run's state: computed once a step for the comparison of ranks and the digest
journal."""

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
"""For each object of the run, a number or text for each part of its state: equal if and only if the
bits are (but for sums that agree by chance)."""

_Extra = tuple[Sequence[Tensor], list[Any]]
"""Numbers to read with the next digests, and the list for them."""


class Fingerprint:
    """The digests of all state that must be the same on every rank, and at every world size where
    the strategy promises it.

    Args:
        state: the run's.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._known: tuple[int, Sums] | None = None
        self._wanted: list[Callable[[int], bool]] = []
        self._extra: list[_Extra] = []

    def want(self, is_due: Callable[[int], bool]) -> None:
        """Ask for the digests after the steps of which ``is_due`` is true: the ranks are compared
        after those, too. Every rank must call it, with the same function of the step alone."""
        self._wanted.append(is_due)

    def is_wanted(self, step: int) -> bool:
        """Whether somebody needs the digests after this step. The same on every rank."""
        for is_due in self._wanted:  # noqa: SIM110 (called in each step, where any() takes three times as long)
            if is_due(step):
                return True
        return False

    def read_together(self, numbers: Sequence[Tensor]) -> list[Any]:
        """A list that the next ``after`` fills with these numbers, which are float64 or int64
        tensors without dimensions: a device is waited for once, for them and for the digests.
        Local."""
        found: list[Any] = []
        self._extra.append((numbers, found))
        return found

    def after(self, step: int) -> Sums:
        """The digests after a step, computed once for all listeners that ask at its end: of whole
        tensors, also where each rank has a part. Every rank must call it."""
        if self._known is None or self._known[0] != step:
            extra, self._extra = self._extra, []
            self._known = (step, self._sums(list(self._state.compared()), extra))
        return self._known[1]

    def whole(self) -> Sums:
        """The digests as the state is at the moment: of whole tensors, also where each rank has a
        part. Every rank must call it."""
        return self._sums(list(self._state.compared()))

    def now(self) -> Sums:
        """The digests as the state is at the moment, without the tensors of which each rank has a
        part. Local."""
        items = [item for item in self._state.compared() if not is_dtensor(item[2])]
        return self._sums([(owner, name, map_tensors(_unless_cut, value)) for owner, name, value in items])

    def _sums(self, compared: Sequence[tuple[str, str, Any]], extra: Sequence[_Extra] = ()) -> Sums:
        sums: Sums = {}
        # digests depend on it: tensors are last
        ordered = sorted(compared, key=lambda item: isinstance(item[2], Tensor))
        unread = unread_bit_sums(list(tensors_in([value for _, _, value in ordered])))
        bits = iter(all_on_cpu([*(number for numbers, _ in extra for number in numbers), *unread]))
        for numbers, found in extra:
            found += itertools.islice(bits, len(numbers))
        for owner, name, value in ordered:
            sums.setdefault(owner, {})[name] = next(bits) if isinstance(value, Tensor) else _text(value, bits)
        return sums

    def leaves(self, described: str) -> dict[str, str]:
        """The plain values in a part of the state, by their places in it: for the words about a
        difference. Local.

        ``described``: ``PART of OWNER``.
        """
        for owner, part, value in self._state.compared():
            if f"{part} of {owner}" == described and not isinstance(value, Tensor):
                return dict(_leaves(value, "param_groups" if part == OPTION else ""))
        return {}

    def num_writes(self) -> list[int]:
        """How often each compared tensor has been written in place: writing the same numbers again
        counts."""
        tensors = (value for _, _, value in self._state.compared() if isinstance(value, Tensor))
        return [0 if tensor.is_inference() else version(tensor) for tensor in tensors]


def short_digest(sums: Mapping[str, Any]) -> str:
    """One digest of numbers and texts by name: 16 hexadecimal digits."""
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
    """A value in words. ``bits``: the sums of the bits of the tensors in it and in what follows."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {[next(bits)]}"
    if isinstance(value, dict):
        return str({str(key): _text(item, bits) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return str([_text(item, bits) for item in value])
    return repr(value) if isinstance(value, (bool, int, float, str, bytes, type(None))) else type(value).__name__
