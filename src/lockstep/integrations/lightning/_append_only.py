"""Lists to which a step of an evaluation can append, but which it cannot read.

W processes evaluate W batches at the same time. A step that reads a list of the module would see
the items of more or fewer earlier batches, depending on W. Reading is therefore an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

from lockstep._base.errors import UsageError


class AppendOnly(list[Any]):
    """An empty list that replaces a list of the module during a step.

    Args:
        name: the name of the list in the script.
        step: the name of the step.
    """

    def __init__(self, name: str, step: str) -> None:
        super().__init__()
        self._name = name
        self._step = step

    def taken(self) -> list[Any]:
        """Returns the items that were appended."""
        return list(super().__iter__())

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise UsageError(
            f"{self._step} reads {self._name}, but processes evaluate different batches at the same time, so its contents "
            "would depend on the number of processes. Only append to it there, and read it in on_validation_epoch_end "
            "(on_test_epoch_end). Or fill and read it in on_validation_batch_end.",
            code="list-read-in-evaluation",
        )

    __len__ = __iter__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __reversed__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __mul__ = __rmul__ = __imul__ = _refuse
    clear = copy = count = index = insert = pop = remove = reverse = sort = _refuse
    __hash__ = None


@contextlib.contextmanager
def append_only(places: list[tuple[Any, Any, str]], step: str) -> Iterator[dict[int, list[Any]]]:
    """Replaces lists by append-only ones inside the block.

    Args:
        places: for each list, its container, its key in the container, and its name.
        step: the name of the step that runs inside.

    Yields:
        A dict that is filled after the block: the items that were appended to each list, by its
        number in ``places``.
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
