"""Detecting ranks that have diverged, by comparing every few steps what must be the same on all of them.

Each rank sums the bits of its weights, buffers, optimizer state, learning rates, registered state and the random stream
outside of ``batch.shards``, and the ranks compare the sums. The interval follows from the cost: at most 0.2 % of the time. They
are also compared after steps whose sums the digest journal needs anyway.
"""

from __future__ import annotations

import math
import random
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lockstep.comm.collectives import Collectives
from lockstep.errors import MismatchError
from lockstep.explain.rank_reports import name_ranks
from lockstep.listener import Listener
from lockstep.recovery.fingerprint import Fingerprint, Sums

_MOST_OF_TIME = 0.002
_MOST_STEPS = 1000


class PartedRanks(Listener):
    """Compares the states of the ranks of a run.

    Args:
        fingerprint: of the run's state.
        collectives: over all ranks.
        is_journaled: says of a step whether the digest journal needs its sums.
    """

    def __init__(self, fingerprint: Fingerprint, collectives: Collectives, is_journaled: Callable[[int], bool]) -> None:
        self.have_parted = False
        """Whether a difference was found and reported."""
        self._fingerprint = fingerprint
        self._is_journaled = is_journaled
        self._collectives = collectives
        self._next = 0
        """The step after which the next comparison is due."""
        self._checked: tuple[int, float] | None = None
        """The step and time of the last comparison."""

    def tick(self, step: int) -> None:
        """See Listener.

        Raises:
            MismatchError: the ranks have parted.
        """
        is_due = step >= self._next or self._is_journaled(step)
        if is_due and self._collectives.size > 1 and not self.have_parted:
            self._compare(step, at_end_of_step=True)

    def before_save(self, step: int) -> None:
        """Compare the ranks before a checkpoint is saved. Every rank must call it. Raises MismatchError like ``tick``."""
        if self._collectives.size > 1 and (self._checked is None or self._checked[0] != step):
            self._compare(step, at_end_of_step=False)

    def digest(self) -> int:
        """The digest of all compared state on this rank."""
        return _digest(_named(self._fingerprint.now()))

    def _compare(self, step: int, *, at_end_of_step: bool) -> None:
        began = time.perf_counter()
        # Later the script may have changed something, and fetching the next batch may have drawn.
        sums = _named(self._fingerprint.after(step), _stream()) if at_end_of_step else _named(self._fingerprint.now())
        digest = _digest(sums)
        cost_s = time.perf_counter() - began
        numbers = torch.tensor([digest, -digest, self._steps_until(step, began, cost_s)], dtype=torch.int64)
        highest, lowest, steps = self._collectives.all_reduce(numbers, "max").tolist()
        if highest != -lowest:
            self._refuse(step, sums)
        self._next = step + steps
        self._checked = (step, time.perf_counter())

    def _steps_until(self, step: int, now: float, cost_s: float) -> int:
        """Number of steps until the next comparison, given the cost of this one."""
        if self._checked is None or step <= self._checked[0]:
            return 1
        step_s = (now - self._checked[1]) / (step - self._checked[0])
        return max(1, min(_MOST_STEPS, math.ceil(cost_s / max(step_s * _MOST_OF_TIME, 1e-9))))

    def _refuse(self, step: int, sums: dict[str, Any]) -> None:
        self.have_parted = True
        everyone, plain = zip(*self._collectives.all_gather_plain((sums, self._fingerprint.plain_values())), strict=True)
        since = "the beginning" if self._checked is None else f"step {self._checked[0]}"
        for name in dict.fromkeys(name for peer_sums in everyone for name in peer_sums):
            values = [peer_sums.get(name) for peer_sums in everyone]
            usual, unlike = _odd_ones_out(values)
            if unlike:
                differs = _values(plain[unlike[0]].get(name, {}), plain[usual[0]].get(name, {}))
                raise MismatchError(
                    f"the ranks have parted: after step {step}, {name} is not the same on {name_ranks(unlike)} as on "
                    f"{name_ranks(usual)}{differs} (it was after {since}). Outside of batch.shards every rank must do the same "
                    "with the same numbers: look for code there that depends on the rank, on one shard's values (the loss of "
                    "the last shard, say: use batch['loss']), on the time, or on a separate generator. `lockstep verify` shows "
                    "where. No checkpoint is written of this state."
                )


def _values(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """The first plain value that differs, in words; empty: none does."""
    path = next((path for path in {**here, **there} if here.get(path) != there.get(path)), None)
    return "" if path is None else f": {path} is {there.get(path, 'missing')}, not {here.get(path, 'there')}"


def _odd_ones_out(values: Sequence[Any]) -> tuple[list[int], list[int]]:
    """The ranks that have the most common value, or rank 0's if others are as common, and the rest."""
    usual = max(values, key=values.count)
    has_usual = [value == usual for value in values]
    return [rank for rank, has in enumerate(has_usual) if has], [rank for rank, has in enumerate(has_usual) if not has]


def _named(sums: Sums, stream: int | None = None) -> dict[str, Any]:
    """All sums by name; causes come first: settings such as learning rates, then the random stream, then tensors."""
    named = {f"{part} of {owner}": value for owner, parts in sums.items() for part, value in parts.items()}
    settings = {name: value for name, value in named.items() if isinstance(value, str)}
    streams = {} if stream is None else {"the random stream outside of batch.shards": stream}
    return {**settings, **streams, **named}


def _digest(sums: Mapping[str, Any]) -> int:
    return zlib.crc32(repr(list(sums.items())).encode())


def _stream() -> int:
    crc = zlib.crc32(torch.default_generator.get_state().numpy().tobytes())
    crc = zlib.crc32(repr(random.getstate()).encode(), crc)
    numpy = sys.modules.get("numpy")
    return crc if numpy is None else zlib.crc32(numpy.random.get_state()[1].tobytes(), crc)
