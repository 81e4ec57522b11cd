"""The placeholder that remains, after a step, of a value that the step computed from one shard or
batch."""

from __future__ import annotations

from typing import Any, NoReturn

from lockstep._base.errors import UsageError


class Local:
    """A placeholder for a value of one shard or batch. Any use of it is an error, since the value
    would differ between processes.

    Args:
        what: the name of the value, for the message.
        remedy: the remedy, for the message.
    """

    __slots__ = ("_remedy", "_what")

    def __init__(self, what: str, remedy: str) -> None:
        self._what = what
        self._remedy = remedy

    def _refuse(self, *_: object) -> NoReturn:
        raise UsageError(
            f"{self._what} was read outside the step that set it. The step runs once per shard (in an evaluation, once per "
            f"batch), each on one process, so processes have different values. {self._remedy}",
            code="value-of-one-shard",
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            # copy, pickle and inspect look for these without using the value.
            raise AttributeError(name)
        self._refuse()

    def __repr__(self) -> str:
        return f"<{self._what}, of one shard>"

    __bool__ = __call__ = __contains__ = __float__ = __format__ = __getitem__ = __index__ = __int__ = __iter__ = __len__ = (
        _refuse
    )
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __matmul__ = (
        _refuse
    )
    __pow__ = __rpow__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __rmatmul__ = __and__ = __or__ = __xor__ = (
        _refuse
    )
    __abs__ = __invert__ = __pos__ = __round__ = __array__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = _refuse

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> NoReturn:
        next(arg for arg in _flat(args) if isinstance(arg, Local))._refuse()


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value
