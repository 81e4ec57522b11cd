"""The attributes that a subclass adds to Trainer, and their changes while one shard is computed.

A shard runs on one process. An attribute that changes there depends on the process's other shards,
and so on the number of processes: ``self.seen += len(inputs["labels"])``. If all processes have
equally many shards, they even agree. So each change is an error, on any number of processes.

An attribute may be created in a shard, from nothing or None, as a cache is. What ``collect()`` has
cleared is as it was before."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from lockstep._base.digest import digest
from lockstep._base.errors import UsageError
from lockstep._data.states import is_generator, take_state
from lockstep.integrations.transformers._state import names_in

_MOST = 256
"""The largest number of items of a container that are compared one by one. Of a larger one, the
number is compared, to keep steps fast."""
_MOST_BYTES = 1 << 20
"""The largest size of a NumPy array that is compared, in bytes."""
_NUMBERS = (bool, int, float, complex, np.generic)
_PLAIN = (*_NUMBERS, str, bytes)

_names_in = functools.cache(names_in)


class ShardAttributes:
    """The attributes of a Trainer's subclass, compared before and after each shard.

    Args:
        trainer: the trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        kind: type = type(trainer)
        self._known = _names_in(kind)

    @contextlib.contextmanager
    def unchanged(self, step: str) -> Iterator[None]:
        """Checks that a shard or an evaluation batch, computed inside the block, changes no
        attribute.

        Args:
            step: the method that computes it.

        Raises:
            UsageError: it changes one.
        """
        before = self._look()
        yield
        for name, mark in self._look().items():
            known = before[name] if name in before else _mark(getattr(type(self._trainer), name, None))
            if known is not None and known != mark:
                raise UsageError(
                    f"{type(self._trainer).__name__}.{step}, or a method that it calls, changes self.{name}. It runs once per "
                    "shard (in an evaluation, once per batch), each on one process, so the value would depend on the number "
                    "of processes. Return the shard's value from collect(), and count in take(collected), which receives the "
                    "values of all shards: docs/how-to/trainer.md#what-runs-where. For the number of steps, read "
                    "self.state.global_step.",
                    code="attribute-changed-in-step",
                )

    def _look(self) -> dict[str, Any]:
        return {name: _mark(value) for name, value in vars(self._trainer).items() if name not in self._known}


def _mark(value: Any) -> Any:
    """Returns what a later value is compared with; None: it is not compared."""
    kind = type(value)
    if isinstance(value, _PLAIN):
        return kind, repr(value)  # NaN is equal to itself.
    if isinstance(value, Tensor):
        # Its bits are not read: that would wait for the device.
        return _Same(value), None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        is_small = value.nbytes <= _MOST_BYTES and not value.dtype.hasobject
        return kind, value.shape, value.dtype, value.tobytes() if is_small else _Same(value)
    if is_generator(value):
        return kind, digest(take_state(value))
    if isinstance(value, (list, tuple, deque, set, frozenset, dict)):
        return kind, len(value), _items(value) if len(value) <= _MOST else None
    return None


def _items(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _mark(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    return [_mark(item) for item in value]


class _Same:
    """Equal only for the same object."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]
