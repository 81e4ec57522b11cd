"""Lists that a step of an evaluation may append to, and not read.

As many batches as there are processes are evaluated at once. A step that reads what the batches
before it have appended would see more or less of them, by the number of processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

from lockstep._base.errors import UsageError


class AppendOnly(list[Any]):
    """An empty list in place of one of the module's.

    Args:
        name: how the script calls it.
        step: the step in which it is.
    """

    def __init__(self, name: str, step: str) -> None:
        super().__init__()
        self._name = name
        self._step = step

    def taken(self) -> list[Any]:
        """What was appended."""
        return list(super().__iter__())

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise UsageError(
            f"{self._name} is read in {self._step}, where batches are evaluated on several processes at once: what "
            "is in the list would "
            "depend on their number. Only append to it there. Read it in on_validation_epoch_end (on_test_epoch_end), or "
            "define on_validation_batch_end, and fill and read it there: then batches are evaluated one after another."
        )

    __len__ = __iter__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __reversed__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __mul__ = __rmul__ = __imul__ = _refuse
    clear = copy = count = index = insert = pop = remove = reverse = sort = _refuse
    __hash__ = None


@contextlib.contextmanager
def append_only(places: list[tuple[Any, Any, str]], step: str) -> Iterator[dict[int, list[Any]]]:
    """Let lists be ones that can only be appended to, inside.

    Args:
        places: for each list, what holds it, its key there, and its name.
        step: the step that runs inside.

    Yields:
        A dict: what was appended to each list, by its number in ``places``, once the block has
        ended.
    """
    own = [holder[key] for holder, key, _ in places]
    guards = [AppendOnly(name, step) for _, _, name in places]
    taken: dict[int, list[Any]] = {}
    for (holder, key, _), guard in zip(places, guards, strict=True):
        holder[key] = guard
    try:
        yield taken
    finally:
        for number, ((holder, key, _), guard) in enumerate(zip(places, guards, strict=True)):
            if holder.get(key) is guard if isinstance(holder, dict) else holder[key] is guard:
                holder[key] = own[number]
    taken.update({number: items for number, guard in enumerate(guards) if (items := guard.taken())})
