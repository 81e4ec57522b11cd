"""The order in which the shards of a phase have run units, forward and backward. If it differs
between ranks, the run ends: each pass of a unit is a collective, and ranks that run other units
would exchange the parameters of different ones."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep._base.errors import ModelError
from lockstep._sync.units import SAME_BLOCKS, Unit


class UnitRuns:
    """The orders of the current phase, and the orders on which all ranks agreed before."""

    def __init__(self) -> None:
        self._agreed: dict[int, int] = {}
        """The newest order that all ranks have had, by number of the phase."""
        self._phase = 0
        self.clear()

    def clear(self) -> None:
        """Forgets the orders of a phase."""
        self._runs: list[tuple[int, ...]] = []
        """The numbers of the units that had run in the micro-batch, in order, and then the numbers
        of the units that the backward pass has entered, for each backward call."""
        self.begin_shard()

    def begin_phase(self, phase: int) -> None:
        """Begins a phase. ``phase``: its number within the step."""
        self._phase = phase
        self.clear()

    def begin_shard(self) -> None:
        """Begins a micro-batch."""
        self._ran: list[int] = []
        """The numbers of the units whose forward passes have begun, in order."""
        self._forget_backward()

    def _forget_backward(self) -> None:
        self._entered: list[int] = []
        """The numbers of the units that the backward pass has come to, in order."""
        self._inside: set[Unit] = set()
        """The units that the backward pass has entered and not completed."""
        self._passed: dict[Unit, int] = {}
        """The number of forward passes of each unit that the backward pass has completed."""

    def begun(self, unit: Unit) -> None:
        """Notes that a forward pass of a unit begins."""
        self._ran.append(unit.number)

    def begin_backward(self) -> None:
        """Begins a backward pass."""
        self._runs.append(tuple(self._ran))
        self._forget_backward()

    def entered(self, unit: Unit) -> None:
        """Notes that the backward pass has the gradient of an output of a unit."""
        if unit not in self._inside:
            self._inside.add(unit)
            self._entered.append(unit.number)

    def passed(self, unit: Unit) -> bool:
        """Notes that the backward pass has completed one forward pass of a unit. Returns whether
        this was the last."""
        self._inside.discard(unit)
        self._passed[unit] = self._passed.get(unit, 0) + 1
        return self._passed[unit] == unit.num_awaited and not unit.is_unannounced

    def end_backward(self, *, keeps_graph: bool) -> None:
        """Ends the backward pass. ``keeps_graph``: whether another one may go through the same
        forward passes."""
        self._runs.append(tuple(self._entered))
        # With a retained graph, another backward pass may announce the same forward passes again.
        if not keeps_graph:
            for unit, number in self._passed.items():
                unit.num_awaited = max(0, unit.num_awaited - number)
        self._forget_backward()

    def new_order(self) -> int | None:
        """Returns a number that stands for the order of the phase, the same in every process; None:
        the order is the one agreed on."""
        # Python's hash of ints and of tuples of ints does not depend on PYTHONHASHSEED.
        order = hash(tuple(self._runs))
        return None if order == self._agreed.get(self._phase, 0) else order

    def agree(self, orders: Sequence[int], world_size: int, step: int) -> None:
        """Compares the new orders that ranks have had. Either all ranks have the same new one, or
        none has one.

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
