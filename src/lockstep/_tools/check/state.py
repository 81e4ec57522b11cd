"""What all locations of a script may contain at one point of its execution."""

from __future__ import annotations

from collections.abc import Iterable

from lockstep._tools.check.values import Cell, Frame, Object, Value, Write, merge

Key = tuple["Object | Frame", str]
"""A variable of a frame, an attribute of an object, or an item of it under a constant
(``[name]``)."""
CONTENT = "*"
"""The location for everything else in an object: the items of a list, the numbers of a tensor, the
weights of a model."""


class State:
    """Cells by location."""

    __slots__ = ("cells",)

    def __init__(self, cells: dict[Key, Cell] | None = None) -> None:
        self.cells: dict[Key, Cell] = {} if cells is None else cells

    def copy(self) -> State:
        """A branch's own."""
        return State(dict(self.cells))

    def get(self, key: Key) -> Cell | None:
        """The cell of a location; None: nothing is known of it."""
        return self.cells.get(key)

    def put(self, key: Key, value: Value, write: Write | None) -> None:
        """Replace the content of a location."""
        self.cells[key] = Cell(value, frozenset() if write is None else frozenset((write,)))

    def add(self, key: Key, value: Value, write: Write | None) -> None:
        """Change the content of a location in part: earlier writes count as well."""
        before = self.cells.get(key)
        if before is None:
            self.put(key, value, write)
            return
        writes = before.writes if write is None else before.writes | {write}
        self.cells[key] = Cell(merge((before.value, value)), writes)

    def forget(self, owner: Object | Frame) -> None:
        """Note that an object, or a function's variables, are made again."""
        for key in [key for key in self.cells if key[0] is owner]:
            del self.cells[key]

    def age(self, loop: int) -> None:
        """Note that a loop begins another iteration, or is finished: what was written in it is from
        an earlier one now."""
        for key, cell in self.cells.items():
            if cell.writes and any(not write.stale and loop in write.loops for write in cell.writes):
                aged = frozenset(write._replace(stale=True) if loop in write.loops else write for write in cell.writes)
                self.cells[key] = Cell(cell.value, aged)


def join(states: Iterable[State]) -> State | None:
    """The state where several ways meet: what may be true on any of them. None: no way leads
    there."""
    result: dict[Key, Cell] | None = None
    for state in states:
        if result is None:
            result = dict(state.cells)
            continue
        for key, cell in state.cells.items():
            known = result.get(key)
            if known is None:
                result[key] = cell
            elif known is not cell:
                result[key] = Cell(merge((known.value, cell.value)), known.writes | cell.writes)
    return None if result is None else State(result)
