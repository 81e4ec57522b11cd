"""Detects ranks that have diverged, by comparing every few steps what must be the same on all
ranks.

::

    each rank    sums of the bits of: weights, buffers, optimizer state, learning rates,
                 registered state, the random stream outside the shard loop
                    -> one digest of 62 bits
    all ranks    the maximum of (digest, -digest, steps until the next comparison), with what else
                 they agree on between steps (``_loop/between.py``)
                 equal if and only if max(digest) = -max(-digest) = min(digest)
    on a difference only: gather all sums, find the first that differs, raise MismatchError

The interval follows from the measured cost: at most 0.2 % of the time. The ranks are also compared
after steps whose sums an instrument needs anyway, before anything is saved, and when the script
ends, since what it does after its last step is part of the results.

The comparison before a save matters most. A checkpoint contains each whole tensor once, from one
rank. Saved after a divergence, it would mix different states, and a resume would hide that.
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

from lockstep._base.errors import MismatchError
from lockstep._base.reports import warn
from lockstep._state.recovery.fingerprint import Fingerprint, Sums
from lockstep._world.comm.collectives import Collectives
from lockstep._world.machine.sizes import name_ranks

_MOST_OF_TIME = 0.002
"""The largest part of the training time that comparisons take."""
_MOST_STEPS = 1000
"""The largest number of steps between comparisons, so that a divergence is found within so many."""


class DivergenceCheck:
    """The comparison of the states of the ranks of a run. A topic on which the ranks agree between
    steps."""

    def __init__(self, fingerprint: Fingerprint, collectives: Collectives) -> None:
        self.have_diverged = False
        """Whether a difference was found and reported."""
        self._fingerprint = fingerprint
        self._collectives = collectives
        self._next = 0
        """The step after which the next comparison is due."""
        self._checked: tuple[int, float] | None = None
        """The step and time of the last comparison."""
        self._proposed: dict[str, Any] = {}
        """This rank's sums in the comparison that is under way between two steps."""
        self._end_of_training: tuple[dict[str, Any], list[int]] | None = None
        """This rank's sums, and the number of writes to its tensors, when the last loop over
        epochs ended."""

    def is_due(self, step: int) -> bool:
        """Whether the ranks are compared after this step. The same on every rank."""
        is_due = step >= self._next or self._fingerprint.is_wanted(step)
        return is_due and self._collectives.size > 1 and not self.have_diverged

    def propose(self, step: int) -> list[int] | None:
        """Returns the numbers of this rank, if the comparison is due. With weights that are cut
        over the ranks, every rank must call it."""
        if not self.is_due(step):
            return None
        # The random stream is compared only here, at the end of a step. Later, fetching the next
        # batch may have drawn from it, which depends on the shards of this rank.
        self._proposed, numbers = self._measure(step, lambda: _named(self._fingerprint.after(step), _stream()))
        return numbers

    def settle(self, step: int, largest: Sequence[int]) -> None:
        """Takes the largest numbers of all ranks.

        Raises:
            MismatchError: the ranks have diverged.
        """
        sums, self._proposed = self._proposed, {}
        self._judge(step, f"after step {step}", sums, largest)

    def before_save(self, step: int) -> None:
        """Compares the ranks before a checkpoint that is saved right after a step, unless they
        have just been compared. Every rank must call it.

        Raises:
            MismatchError: the ranks have diverged.
        """
        if self._checked is None or self._checked[0] != step:
            self.compare(step, f"after step {step}")

    def compare(self, step: int, when: str) -> None:
        """Compares the ranks after code of the script outside of steps, for example at the end of
        an epoch. Every rank must call it.

        Args:
            when: the place in the script, for the message.

        Raises:
            MismatchError: the ranks have diverged.
        """
        if self._collectives.size > 1:
            self._compare(step, when, self._sums)

    def leave_epochs(self) -> None:
        """Records the trained state at the end of a loop over epochs. Local."""
        if self._collectives.size > 1:
            self._end_of_training = self._sums(), self._fingerprint.num_writes()

    def compare_at_end(self, step: int) -> bool:
        """Compares the ranks when the script ends. It is no error if rank 0 alone has changed
        something after the last epoch, for example has loaded the best weights to export them.
        That is reported as a warning.

        Returns:
            Whether the state is the same on all ranks.
        """
        if self._collectives.size == 1:
            return True
        return self._compare(step, "at the end of the script", self._sums, is_end=True)

    def digest(self) -> int:
        """Returns the digest of all compared state, including weights that are cut over the ranks,
        so that all ranks see a change in one part. Every rank must call it."""
        return _digest(_named(self._fingerprint.whole()))

    def _sums(self) -> dict[str, Any]:
        return _named(self._fingerprint.now())

    def _compare(self, step: int, when: str, compute: Callable[[], dict[str, Any]], *, is_end: bool = False) -> bool:
        sums, numbers = self._measure(step, compute)
        largest = self._collectives.all_reduce(torch.tensor(numbers, dtype=torch.int64), "max").tolist()
        return self._judge(step, when, sums, largest, is_end=is_end)

    def _measure(self, step: int, compute: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], list[int]]:
        """Returns this rank's sums, and its numbers for the comparison."""
        began = time.perf_counter()
        sums = compute()
        digest = _digest(sums)
        # Without the all-reduce, which mostly waits for the slowest rank: it would wait anyway, at
        # the next collective of the step.
        cost_s = time.perf_counter() - began
        # The maximum of -digest is minus the minimum: one reduction gives both ends of the range.
        return sums, [digest, -digest, self._steps_until(step, began, cost_s)]

    def _judge(self, step: int, when: str, sums: dict[str, Any], largest: Sequence[int], *, is_end: bool = False) -> bool:
        """Returns whether all ranks have the same state, given the largest of their numbers."""
        highest, lowest, steps = largest
        if highest != -lowest and not (is_end and self._is_work_of_rank_0(sums)):
            self._refuse(when, sums)
        self._next = step + steps
        self._checked = (step, time.perf_counter())
        return bool(highest == -lowest)

    def _is_work_of_rank_0(self, sums: dict[str, Any]) -> bool:
        """Returns whether no other rank has changed the trained state. If so, rank 0 prints what it
        has changed itself. Every rank must call it."""
        is_unchanged = self._end_of_training == (sums, self._fingerprint.num_writes())
        mine, *others = self._collectives.all_gather_plain((sums, is_unchanged))
        if any(other != (others[0][0], True) for other in others):
            return False
        if self._collectives.rank == 0:
            changed = next(name for name, value in {**others[0][0], **mine[0]}.items() if others[0][0].get(name) != value)
            warn(
                f"rank 0 alone changed {changed} after the last epoch. The other ranks keep the trained values.",
                code="changed-on-rank-0",
            )
        return True

    def _steps_until(self, step: int, now: float, cost_s: float) -> int:
        """Returns the number of steps until the next comparison, given the cost of this one."""
        if self._checked is None or step <= self._checked[0]:
            return 1
        step_s = (now - self._checked[1]) / (step - self._checked[0])
        # cost / (n * step) <= 0.002, so n = cost / (0.002 * step): 1 ms for steps of 100 ms gives
        # 5.
        return max(1, min(_MOST_STEPS, math.ceil(cost_s / max(step_s * _MOST_OF_TIME, 1e-9))))

    def _which(self, name: str) -> str:
        """Returns a clause with the value that differs in a part of the state, on each rank; empty:
        it is no plain value. Every rank must call it."""
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
        # In the order of causes (see ``_named``): a learning rate that differs explains the
        # weights.
        for name in dict.fromkeys(name for peer_sums in everyone for name in peer_sums):
            values = [peer_sums.get(name) for peer_sums in everyone]
            usual, others = _odd_ones_out(values)
            if others:
                raise MismatchError(
                    f"the ranks have diverged: {when}, {name} differs on {name_ranks(others)} from {name_ranks(usual)}"
                    f"{self._which(name)} (it was equal after {since}). This state is not saved. Look for code outside of "
                    "batch.shards that depends on the rank, one shard's values (use batch['loss']), the time, or an unseeded "
                    "generator; `lockstep verify` finds the first difference.",
                    code="ranks-diverged",
                )


def _first_difference(by_rank: Sequence[Mapping[str, str]]) -> tuple[str, list[str]] | None:
    """Returns the first place at which values differ, with the values of all ranks."""
    for place in dict.fromkeys(place for leaves in by_rank for place in leaves):
        values = [leaves.get(place, "missing") for leaves in by_rank]
        if len(set(values)) > 1:
            return place, values
    return None


def _odd_ones_out(values: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Returns the ranks with the most common value (rank 0's value if several are equally common),
    and the other ranks."""
    usual = max(values, key=values.count)
    has_usual = [value == usual for value in values]
    return [rank for rank, has in enumerate(has_usual) if has], [rank for rank, has in enumerate(has_usual) if not has]


def _named(sums: Sums, stream: int | None = None) -> dict[str, Any]:
    """Returns all sums by name. Causes are first: settings such as learning rates, then the random
    stream, then tensors."""
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
    """Returns 62 bits, so that both the hash and its negative fit in an int64."""
    hasher = hashlib.blake2b(digest_size=8)
    for part in parts:
        hasher.update(part)
    return int.from_bytes(hasher.digest(), "little") >> 2
