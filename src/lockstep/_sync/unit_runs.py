"""Which units the shards of a phase have run, forward and backward, in order: the same on every
rank, or the run ends."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep._base.errors import ModelError
from lockstep._sync.units import SAME_BLOCKS, Unit


class UnitRuns:
    """Them."""

    def __init__(self) -> None:
        self._agreed: dict[int, int] = {}
        """By number of the phase, the newest order that all ranks have had."""
        self._phase = 0
        self.clear()

    def clear(self) -> None:
        """Forget those of a phase."""
        self._runs: list[tuple[int, ...]] = []
        """For each backward call, the numbers of the units that had run in the micro-step, in
        order, and then of those that it has entered."""
        self.begin_shard()

    def begin_phase(self, phase: int) -> None:
        """Begin a phase. ``phase``: its number within the step."""
        self._phase = phase
        self.clear()

    def begin_shard(self) -> None:
        """Begin a micro-step."""
        self._ran: list[int] = []
        """The numbers of the units whose forward passes have begun, in order."""
        self._forget_backward()

    def _forget_backward(self) -> None:
        self._entered: list[int] = []
        """The numbers of the units that the backward pass has come to, in order."""
        self._inside: set[Unit] = set()
        """Those that it is not yet through with."""
        self._passed: dict[Unit, int] = {}
        """How many forward passes of each unit the backward pass is through with."""

    def begun(self, unit: Unit) -> None:
        """A forward pass of a unit begins."""
        self._ran.append(unit.number)

    def begin_backward(self) -> None:
        """A backward pass begins."""
        self._runs.append(tuple(self._ran))
        self._forget_backward()

    def entered(self, unit: Unit) -> None:
        """The backward pass has the gradient of an output of a unit."""
        if unit not in self._inside:
            self._inside.add(unit)
            self._entered.append(unit.number)

    def passed(self, unit: Unit) -> bool:
        """The backward pass is through with one forward pass of a unit. Returns whether this was
        the last."""
        self._inside.discard(unit)
        self._passed[unit] = self._passed.get(unit, 0) + 1
        return self._passed[unit] == unit.num_awaited and not unit.is_unannounced

    def end_backward(self, *, keeps_graph: bool) -> None:
        """The backward pass has ended. ``keeps_graph``: whether another one may go through the same
        forward passes."""
        self._runs.append(tuple(self._entered))
        if not keeps_graph:
            for unit, number in self._passed.items():
                unit.num_awaited = max(0, unit.num_awaited - number)
        self._forget_backward()

    def new_order(self) -> int | None:
        """A number that stands for the order of the phase, the same in every process; None: it is
        the one agreed on."""
        order = hash(tuple(self._runs))
        return None if order == self._agreed.get(self._phase, 0) else order

    def agree(self, orders: Sequence[int], world_size: int, step: int) -> None:
        """Compare the new orders that ranks have had, none of which is to be left alone.

        Raises:
            ModelError: the ranks have run different units.
        """
        if not orders:
            return
        if len(orders) < world_size or len(set(orders)) > 1:
            raise ModelError(
                f"step {step}: the processes ran different parts of the model, forward or backward. {SAME_BLOCKS}",
                code="different-blocks",
            )
        self._agreed[self._phase] = orders[0]
