"""The module's own attributes, and what a step does to them.

``self.outputs.append(loss)`` in ``validation_step`` is how Lightning's documentation collects values for the end of
the epoch. The step runs for each shard or batch on one process, so such a list would hold that process's part only.
What a step appends to a list is therefore taken off again, shared, and appended on every rank in the order of shards
and batches. What a step assigns lasts until the step ends (see ``Local``), and any other change is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, MutableSequence, MutableSet
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor

from lockstep.base.errors import UsageError
from lockstep.integrations.lightning.local import Local

Path = tuple[Any, ...]
"""The name of an attribute, then keys and indices down to a list."""
Growth = tuple[Path, list[Any]]
"""A list, and what was appended to it."""
_MOST = 256
"""Items of a container that are looked at one by one. A larger one (a vocabulary, a data set) is known by its size only."""
_PLAIN = (bool, int, float, str, bytes, type(None))
_REMEDY = (
    "To sum or average it, use self.log or a torchmetrics.Metric; to collect it, append it to a list that is an attribute; to "
    "count steps, use batch_idx, self.global_step, or a hook such as on_train_batch_end, which runs once per step."
)


class Attributes:
    """Watches the attributes of a LightningModule.

    Args:
        module: the module.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._ignored = {*vars(LightningModule()), "forward", "log", "_on_before_batch_transfer"}

    def look(self) -> dict[Path, Any]:
        """The attributes now. Each list, mapping, set or tensor in them stands with its size or version."""
        return dict(self._walk())

    def changes(self, before: dict[Path, Any], step: str) -> tuple[list[Growth], list[str]]:
        """What has happened since, undone: lists are as long as before, and assigned attributes raise errors when
        they are used.

        Returns:
            What was appended to lists, and the names of attributes that were assigned.

        Raises:
            UsageError: something else has changed.
        """
        grown, assigned = list[Growth](), list[str]()
        replaced = set[Path]()
        for path, (value, mark) in list(self._walk()):
            if any(path[: len(above)] == above for above in replaced):
                continue
            known = before.get(path)
            if known is not None and (known[0] is value or (isinstance(value, _PLAIN) and known[0] == value)):
                if known[1] == mark:
                    continue
                if isinstance(value, MutableSequence) and mark > known[1]:
                    grown.append((path, list(value[known[1] :])))
                    del value[known[1] :]
                    continue
                if isinstance(value, MutableMapping) and known[1] < mark <= _MOST:
                    continue  # its new values follow
                self._refuse(path, step)
            elif len(path) == 1:
                replaced.add(path)
                assigned.append(path[0])
            elif known is None and isinstance(value, MutableSequence):  # of a defaultdict(list)
                replaced.add(path)
                grown.append((path, list(value)))
                value.clear()
            else:
                self._refuse(path, step)
        self.hide(assigned, step)
        return grown, assigned

    def lists(self) -> list[tuple[Path, Any, str]]:
        """For each list: its path, what holds it (by the last part of the path), and how the script calls it."""
        return [
            (path, self._at(path[:-1]), _name(path))
            for path, (value, _) in self._walk()
            if type(value) is list and not any(isinstance(self._at(path[:end]), list) for end in range(1, len(path)))
        ]

    def _at(self, path: Path) -> Any:
        found: Any = vars(self._module)
        for key in path:
            found = found[key]
        return found

    def hide(self, names: list[str], step: str) -> None:
        """Let attributes raise errors when they are used."""
        for name in names:
            vars(self._module)[name] = Local(f"self.{name}, which {step} sets,", _REMEDY)

    def append(self, path: Path, items: list[Any]) -> None:
        """Append to a list."""
        found: Any = vars(self._module)
        for index, key in enumerate(path):
            if isinstance(found, MutableMapping) and key not in found and index == len(path) - 1:
                found[key] = []  # of a defaultdict(list), on a process that has not run the step
            found = found[key]
        found.extend(items)

    def _walk(self) -> Iterator[tuple[Path, Any]]:
        for name, value in vars(self._module).items():
            if name not in self._ignored and not isinstance(value, Local):
                yield from _walk((name,), value, 3)

    def _refuse(self, path: Path, step: str) -> None:
        raise UsageError(
            f"{step} changes {_name(path)} in place. It runs once per shard (in an evaluation, once per batch), each "
            "on one process, so "
            f"every process would have a different value. {_REMEDY}"
        )


def _name(path: Path) -> str:
    return f"self.{path[0]}" + "".join(f"[{key!r}]" for key in path[1:])


def _walk(path: Path, value: Any, depth: int) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Tensor):
        yield path, (value, None if value.is_inference() else value._version)
    elif isinstance(value, MutableSequence | MutableMapping | MutableSet):
        yield path, (value, len(value))
    else:
        yield path, (value, None)
    if not depth or not isinstance(value, MutableMapping | MutableSequence) or len(value) > _MOST:
        return
    if isinstance(value, MutableMapping):
        for key, item in list(value.items()):
            yield from _walk((*path, key), item, depth - 1)
    else:
        for index, item in enumerate(value):
            if isinstance(item, MutableSequence | MutableMapping):
                yield from _walk((*path, index), item, depth - 1)
