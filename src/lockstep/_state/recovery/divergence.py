"""Detecting ranks that have diverged, by comparing every few steps what must be the same on all of
them.

Each rank sums the bits of its weights, buffers, optimizer state, learning rates, registered state
and the random stream outside of ``batch.shards``, and the ranks compare the sums. The interval
follows from the cost: at most 0.2 % of the time. They are also compared after steps whose sums an
instrument needs anyway, before anything is saved, and when the script ends: what it does after its
last step is part of the answer.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from typing_extensions import override

from lockstep._base.errors import MismatchError
from lockstep._base.reports import warn
from lockstep._listener import Listener, Stage
from lockstep._state.recovery.fingerprint import Fingerprint, Sums
from lockstep._world.comm.collectives import Collectives
from lockstep._world.machine.sizes import name_ranks

_MOST_OF_TIME = 0.002
_MOST_STEPS = 1000


class DivergenceCheck(Listener):
    """Compares the states of the ranks of a run."""

    stage = Stage.EARLY

    def __init__(self, fingerprint: Fingerprint, collectives: Collectives) -> None:
        self.have_diverged = False
        """Whether a difference was found and reported."""
        self._fingerprint = fingerprint
        self._collectives = collectives
        self._next = 0
        """The step after which the next comparison is due."""
        self._checked: tuple[int, float] | None = None
        """The step and time of the last comparison."""
        self._trained: tuple[dict[str, Any], list[int]] | None = None
        """This rank's sums, and how often its tensors had been written, when the last loop over
        epochs was left."""

    @override
    def tick(self, step: int) -> None:
        """Raises:
        MismatchError: the ranks have diverged.
        """
        is_due = step >= self._next or self._fingerprint.is_wanted(step)
        if is_due and self._collectives.size > 1 and not self.have_diverged:
            # Later the script may have changed something, and fetching the next batch may have
            # drawn.
            self._compare(step, f"after step {step}", lambda: _named(self._fingerprint.after(step), _stream()))

    def before_save(self, step: int) -> None:
        """Compare the ranks before a checkpoint that is saved right after a step, unless ``tick``
        has just done so. Every rank must call it. Raises MismatchError like ``tick``."""
        if self._checked is None or self._checked[0] != step:
            self.compare(step, f"after step {step}")

    def compare(self, step: int, when: str) -> None:
        """Compare the ranks behind code of the script's own, an epoch's tail, say. Every rank must
        call it.

        Args:
            when: the place in the script, in words.

        Raises:
            MismatchError: the ranks have diverged.
        """
        if self._collectives.size > 1:
            self._compare(step, when, self._sums)

    def leave_epochs(self) -> None:
        """Remember what was trained, as a loop over epochs is left. Local."""
        if self._collectives.size > 1:
            self._trained = self._sums(), self._fingerprint.num_writes()

    def compare_at_end(self, step: int) -> bool:
        """``compare``, when the script ends. That rank 0 alone has changed something after the last
        epoch (it may have loaded the best weights to export them) is reported, and is no error.

        Returns:
            Whether the state is the same on all ranks.
        """
        if self._collectives.size == 1:
            return True
        return self._compare(step, "at the end of the script", self._sums, is_end=True)

    def digest(self) -> int:
        """The digest of all compared state, whole: also of weights of which each rank has a part,
        so that a change in one part is seen by all. Every rank must call it."""
        return _digest(_named(self._fingerprint.whole()))

    def _sums(self) -> dict[str, Any]:
        return _named(self._fingerprint.now())

    def _compare(self, step: int, when: str, compute: Callable[[], dict[str, Any]], *, is_end: bool = False) -> bool:
        began = time.perf_counter()
        sums = compute()
        digest = _digest(sums)
        cost_s = time.perf_counter() - began
        numbers = torch.tensor([digest, -digest, self._steps_until(step, began, cost_s)], dtype=torch.int64)
        highest, lowest, steps = self._collectives.all_reduce(numbers, "max").tolist()
        if highest != -lowest and not (is_end and self._is_work_of_rank_0(sums)):
            self._refuse(when, sums)
        self._next = step + steps
        self._checked = (step, time.perf_counter())
        return bool(highest == -lowest)

    def _is_work_of_rank_0(self, sums: dict[str, Any]) -> bool:
        """Whether all other ranks have left alone what was trained; if so, rank 0 says what it has
        changed. Every rank must call it."""
        is_left_alone = self._trained == (sums, self._fingerprint.num_writes())
        mine, *others = self._collectives.all_gather_plain((sums, is_left_alone))
        if any(other != (others[0][0], True) for other in others):
            return False
        if self._collectives.rank == 0:
            changed = next(name for name, value in {**others[0][0], **mine[0]}.items() if others[0][0].get(name) != value)
            warn(
                f"after the last epoch rank 0 alone has changed {changed}: the other ranks still have the trained values.",
                code="changed-on-rank-0",
            )
        return True

    def _steps_until(self, step: int, now: float, cost_s: float) -> int:
        """Number of steps until the next comparison, given the cost of this one."""
        if self._checked is None or step <= self._checked[0]:
            return 1
        step_s = (now - self._checked[1]) / (step - self._checked[0])
        return max(1, min(_MOST_STEPS, math.ceil(cost_s / max(step_s * _MOST_OF_TIME, 1e-9))))

    def _which(self, name: str) -> str:
        """The value in a part of the state that differs, on each rank, as a clause; empty: it is no
        plain value. Every rank must call it."""
        found = _first_difference(self._collectives.all_gather_plain(self._fingerprint.leaves(name)))
        if found is None:
            return ""
        place, values = found
        ranks = {value: [rank for rank, other in enumerate(values) if other == value] for value in values}
        return f": {place or 'it'} is {', but '.join(f'{value} on {name_ranks(which)}' for value, which in ranks.items())}"

    def _refuse(self, when: str, sums: dict[str, Any]) -> None:
        self.have_diverged = True
        everyone = self._collectives.all_gather_plain(sums)
        since = "the beginning" if self._checked is None else f"step {self._checked[0]}"
        for name in dict.fromkeys(name for peer_sums in everyone for name in peer_sums):
            values = [peer_sums.get(name) for peer_sums in everyone]
            usual, unlike = _odd_ones_out(values)
            if unlike:
                raise MismatchError(
                    f"the ranks have diverged: {when}, {name} is not the same on {name_ranks(unlike)} as on "
                    f"{name_ranks(usual)}{self._which(name)} (it was the same after {since}). Outside of batch.shards every "
                    "rank must do the same with the same numbers: look for code there that depends on the rank, on one "
                    "shard's values (the loss of the last shard, say: use batch['loss']), on the time, or on a generator of "
                    "its own. `lockstep verify` shows where. This state is not saved.",
                    code="ranks-diverged",
                )


def _first_difference(by_rank: Sequence[Mapping[str, str]]) -> tuple[str, list[str]] | None:
    """The first place at which values differ, and those of all ranks."""
    for place in dict.fromkeys(place for leaves in by_rank for place in leaves):
        values = [leaves.get(place, "missing") for leaves in by_rank]
        if len(set(values)) > 1:
            return place, values
    return None


def _odd_ones_out(values: Sequence[Any]) -> tuple[list[int], list[int]]:
    """The ranks that have the most common value, or rank 0's if others are as common, and the
    rest."""
    usual = max(values, key=values.count)
    has_usual = [value == usual for value in values]
    return [rank for rank, has in enumerate(has_usual) if has], [rank for rank, has in enumerate(has_usual) if not has]


def _named(sums: Sums, stream: int | None = None) -> dict[str, Any]:
    """All sums by name; causes come first: settings such as learning rates, then the random stream,
    then tensors."""
    named = {f"{part} of {owner}": value for owner, parts in sums.items() for part, value in parts.items()}
    settings = {name: value for name, value in named.items() if isinstance(value, str)}
    streams = {} if stream is None else {"the random stream outside of batch.shards": stream}
    return {**settings, **streams, **named}


def _digest(sums: Mapping[str, Any]) -> int:
    return _hash(repr(list(sums.items())).encode())


def _stream() -> int:
    numpy = sys.modules.get("numpy")
    return _hash(
        torch.default_generator.get_state().numpy().tobytes(),
        repr(random.getstate()).encode(),
        b"" if numpy is None else numpy.random.get_state()[1].tobytes(),
    )


def _hash(*parts: bytes) -> int:
    """62 bits, so that both it and its negative fit in an int64."""
    hasher = hashlib.blake2b(digest_size=8)
    for part in parts:
        hasher.update(part)
    return int.from_bytes(hasher.digest(), "little") >> 2
