"""The circumstances of an error: the frames of its traceback, and what is in them.

Nothing is changed, and neither ``repr`` nor a property of a user's object is called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import FrameType, TracebackType
from typing import Any

_MOST_FRAMES = 200
_MOST_NAMES = 8
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Prefixes that ``torch.compile`` and others add to the names of the user's layers."""


class Scene:
    """The circumstances of one error.

    Args:
        error: caught.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.text = str(error)

    @property
    def modules(self) -> Mapping[str, Any]:
        """All modules that this process has imported."""
        return sys.modules

    @property
    def torch(self) -> Any:
        """The module ``torch``, which the code that raised the error has imported."""
        return sys.modules["torch"]

    @cached_property
    def frames(self) -> list[FrameType]:
        """The frames of the error's traceback, innermost first."""
        frames: list[FrameType] = []
        trace: TracebackType | None = self.error.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        return frames[: -_MOST_FRAMES - 1 : -1]

    def is_tensor(self, value: object) -> bool:
        """Whether it is a tensor, judged by its type alone."""
        return issubclass(type(value), self.torch.Tensor)

    def find(self, function: str, name: str) -> Any:
        """The local variable ``name`` in the innermost frame of ``function`` that has it; None:
        there is none."""
        scopes = [frame.f_locals for frame in self.frames if frame.f_code.co_name == function]
        return next((scope[name] for scope in scopes if name in scope), None)

    @cached_property
    def ddp(self) -> Any:
        """The ``DistributedDataParallel`` in whose method the error arose, otherwise the only one
        that the frames' variables lead to; None: unknown."""
        receiver = next((value for frame in self.frames if _is_ddp(value := frame.f_locals.get("self"))), None)
        known = {id(value): value for value in self._in_reach() if _is_ddp(value)}
        return receiver if receiver is not None or len(known) != 1 else next(iter(known.values()))

    def _in_reach(self) -> Iterator[Any]:
        """The variables of the frames and of the script, and the attributes of any ``self``, such
        as a trainer."""
        main = sys.modules.get("__main__")
        for scope in [frame.f_locals for frame in self.frames] + [vars(main) if main else {}]:
            yield from list(scope.values())
            try:
                yield from list(object.__getattribute__(scope.get("self"), "__dict__").values())
            except AttributeError:
                continue


def _is_ddp(value: object) -> bool:
    return any(kind.__name__ == "DistributedDataParallel" for kind in type(value).__mro__)


def reduced(ddp: Any) -> list[tuple[str, Any]]:
    """The parameters with their names in the user's model, in the order of DDP's indices."""
    ignored = ddp.__dict__.get("parameters_to_ignore", ())
    module = ddp.__dict__["_modules"].get("module")
    named = () if module is None else module.named_parameters()
    return [(_plain(name), parameter) for name, parameter in named if parameter.requires_grad and name not in ignored]


def _plain(name: str) -> str:
    for part in _WRAPPERS:
        name = name.replace(part, "")
    return name


def shape(tensor: Any) -> str:
    """The shape as a list: ``[3, 5]``."""
    return str(list(tensor.shape))


def listed(names: Iterable[str]) -> str:
    """``a, b, c and 4 more``."""
    names = list(names)
    if len(names) > _MOST_NAMES:
        return ", ".join(names[:_MOST_NAMES]) + f" and {len(names) - _MOST_NAMES} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
