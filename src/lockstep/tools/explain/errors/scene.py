"""The circumstances of an error: the frames of its traceback, and the models and tensors in them.

Nothing is changed, and neither ``repr`` nor a property of a user's object is called. Of large collections only a part is
inspected.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_LIMIT_S = 1.0
"""Time limit of the search for models and optimizers."""
_MOST_FRAMES = 200
_MOST_OBJECTS = 20_000
_MOST_ITEMS = 64
"""A longer list or dictionary holds data, not models."""
_DEPTH = 3
"""``trainer.engine.model`` is found from ``trainer``."""
_MOST_NAMES = 8

_LOCKSTEP = f"{Path(__file__).parents[3]}/"
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Prefixes that DDP, ``torch.compile`` and others add to the names of the user's layers."""


class Scene:
    """The circumstances of one error.

    Args:
        error: caught.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.text = str(error)
        self._until_s = time.monotonic() + _LIMIT_S

    @property
    def modules(self) -> Mapping[str, Any]:
        """All that this process has imported."""
        return sys.modules

    @property
    def torch(self) -> Any:
        """The module, which the code that raised the error has imported."""
        return sys.modules["torch"]

    @cached_property
    def frames(self) -> list[FrameType]:
        """Innermost first."""
        frames: list[FrameType] = []
        trace: TracebackType | None = self.error.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        return frames[: -_MOST_FRAMES - 1 : -1]

    @cached_property
    def user_frame(self) -> FrameType | None:
        """The innermost frame that is neither PyTorch's nor lockstep's."""
        ours = (os.path.dirname(self.torch.__file__) + "/", _LOCKSTEP)  # noqa: PTH120
        return next((frame for frame in self.frames if not frame.f_code.co_filename.startswith(ours)), None)

    def is_module(self, value: object) -> bool:
        """Whether it is an ``nn.Module``, judged by its type alone, since proxies may do anything."""
        return issubclass(type(value), self.torch.nn.Module)

    def is_tensor(self, value: object) -> bool:
        """Whether it is a tensor, judged by its type alone."""
        return issubclass(type(value), self.torch.Tensor)

    def find(self, function: str, name: str) -> Any:
        """This local variable of the innermost frame of a function that has it; None: there is none."""
        scopes = [frame.f_locals for frame in self.frames if frame.f_code.co_name == function]
        return next((scope[name] for scope in scopes if name in scope), None)

    @cached_property
    def failing(self) -> tuple[Any, FrameType] | None:
        """The innermost layer in whose forward pass the error arose, and its frame."""
        for frame in self.frames:
            module = frame.f_locals.get("self")
            if frame.f_code.co_name == "forward" and self.is_module(module):
                return module, frame
        return None

    @property
    def where(self) -> str:
        """The name and type of the failing layer; empty: the error arose elsewhere."""
        if self.failing is None:
            return ""
        module = self.failing[0]
        name = next((name for root in self.models for name, inner in root.named_modules() if inner is module and name), "")
        kind = type(module).__name__
        return f"layer {plain_name(name)!r} ({kind})" if name else kind

    @cached_property
    def models(self) -> list[Any]:
        """The outermost modules that were found, without wrappers such as DDP; largest first."""
        modules = [value for value in self._objects if self.is_module(value)]
        inner = {id(part) for value in modules for name, part in value.named_modules() if name}
        roots = {id(root): root for value in modules if id(value) not in inner for root in [_unwrapped(value)]}
        return sorted(roots.values(), key=lambda root: -sum(1 for _ in root.parameters()))

    @cached_property
    def ddp(self) -> Any:
        """The ``DistributedDataParallel`` in whose method the error arose, or the only one; None: unknown."""
        receivers = [frame.f_locals.get("self") for frame in self.frames]
        wrapped = [value for value in [*receivers, *self._objects] if _is_ddp(value)]
        if wrapped and (_is_ddp(wrapped[0]) and any(value is wrapped[0] for value in receivers)):
            return wrapped[0]
        return wrapped[0] if len({id(value) for value in wrapped}) == 1 else None

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that were found."""
        return [value for value in self._objects if issubclass(type(value), self.torch.optim.Optimizer)]

    @cached_property
    def _objects(self) -> list[Any]:
        """Modules and optimizers in the frames, in the objects there, and in the script's globals."""
        main = sys.modules.get("__main__")
        scopes = [frame.f_locals for frame in self.frames] + [vars(main) if main else {}]
        wanted = (self.torch.nn.Module, self.torch.optim.Optimizer)
        level: list[Any] = [value for scope in scopes for value in list(scope.values())]
        objects: dict[int, Any] = {}
        seen: set[int] = set()
        for _ in range(_DEPTH + 1):
            following: list[Any] = []
            for value in level:
                if len(seen) > _MOST_OBJECTS or time.monotonic() > self._until_s:
                    return list(objects.values())
                if id(value) in seen:
                    continue
                seen.add(id(value))
                if issubclass(type(value), wanted):
                    objects[id(value)] = value
                else:
                    following += _held_by(value)
            level = following
        return list(objects.values())

    def tensors(self, scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The tensors among these variables, and in short collections among them, by name."""
        for name, value in list(scope.items())[:_MOST_OBJECTS]:
            for key, part in _parts(value):
                if self.is_tensor(part):
                    yield name + key, part


def _parts(value: object) -> list[tuple[str, Any]]:
    """A value, or the items of a short collection."""
    if type(value) in (list, tuple) and len(value) <= _MOST_ITEMS:  # type: ignore[arg-type]
        return [(f"[{number}]", part) for number, part in enumerate(value)]  # type: ignore[arg-type, var-annotated]
    if type(value) is dict and len(value) <= _MOST_ITEMS:
        return [(f"[{key!r}]", part) for key, part in value.items() if type(key) in (str, int)]
    return [("", value)]


def _held_by(value: object) -> list[Any]:
    kind = type(value)
    if kind in (list, tuple, dict):
        return [part for key, part in _parts(value) if key]
    if kind.__module__.partition(".")[0] in ("builtins", "torch", "numpy", "types", "functools"):
        return []
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return list(held.values()) if type(held) is dict and len(held) <= 10 * _MOST_ITEMS else []


def _is_ddp(value: object) -> bool:
    return any(kind.__name__ == "DistributedDataParallel" for kind in type(value).__mro__)


def _unwrapped(module: Any) -> Any:
    registered = module.__dict__.get("_modules", {})
    if _is_ddp(module) or "_orig_mod" in registered:
        return next(iter(registered.values()), module)
    return module


def plain_name(name: str) -> str:
    """A parameter's or layer's name in the user's model."""
    for part in _WRAPPERS[1:]:
        name = name.replace(part, "")
    return name


def reduced(ddp: Any) -> list[tuple[str, Any]]:
    """The parameters with their names, in the order of DDP's indices."""
    ignored = ddp.__dict__.get("parameters_to_ignore", ())
    module = ddp.__dict__["_modules"].get("module")
    return [] if module is None else learning(module, ignored)


def learning(module: Any, ignored: Iterable[str] = ()) -> list[tuple[str, Any]]:
    """The parameters that require gradients, with their names."""
    return [(plain_name(name), p) for name, p in module.named_parameters() if p.requires_grad and name not in ignored]


def shape(tensor: Any) -> str:
    """The shape as a list: ``[3, 5]``."""
    return str(list(tensor.shape))


def listed(names: Iterable[str], most: int = _MOST_NAMES) -> str:
    """``a, b, c and 4 more``."""
    names = list(names)
    if len(names) > most:
        return ", ".join(names[:most]) + f" and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def size(num_bytes: float) -> str:
    """A size in a suitable unit, as PyTorch writes it: ``1.50 GiB``."""
    power = 0 if num_bytes < 1 else min(5, int(math.log(num_bytes, 1024)))
    return f"{num_bytes:.0f} bytes" if power == 0 else f"{num_bytes / 1024**power:.2f} {' KMGTP'[power]}iB"


def num_bytes(text: str) -> float:
    """The inverse of ``size``."""
    number, _, unit = text.strip().partition(" ")
    return float(number) * 1024.0 ** "BKMGTP".index(unit[:1].upper() or "B")
