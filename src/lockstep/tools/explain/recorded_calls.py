"""Notes every collective that is called through ``torch.distributed`` in the log of this process (``call_log``).

PyTorch's recorder knows neither the op nor the root of a collective, and takes milliseconds to read. So the public functions
are wrapped, at 2 to 3 µs a call. What DistributedDataParallel and others call by themselves, in C++, is not noted.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from lockstep.base.tracebacks.frames import owner
from lockstep.tools.explain.call_log import Call, CallLog, Group, Line
from lockstep.tools.explain.frames import is_between


@dataclass(frozen=True)
class _Kind:
    """What of the arguments of a collective must be the same on all ranks."""

    tensor: str = ""
    """The parameter with the tensor, or the list of tensors, of which the type must be; empty: none."""
    has_shape: bool = False
    """Whether its shape must be, too."""
    root: str = ""
    """The parameter with the rank from or to which all send; empty: none."""


_KINDS = {
    "all_reduce": _Kind("tensor", has_shape=True),
    "reduce": _Kind("tensor", has_shape=True, root="dst"),
    "broadcast": _Kind("tensor", has_shape=True, root="src"),
    "all_gather": _Kind("tensor"),
    "all_gather_into_tensor": _Kind("input_tensor"),
    "all_gather_single": _Kind("input"),
    "gather": _Kind("tensor", root="dst"),
    "scatter": _Kind("tensor", root="src"),
    "reduce_scatter": _Kind("input_list"),
    "reduce_scatter_tensor": _Kind("input", has_shape=True),
    "reduce_scatter_single": _Kind("input", has_shape=True),
    "all_to_all": _Kind("input_tensor_list"),
    "all_to_all_single": _Kind("input"),
    "barrier": _Kind(),
    "all_gather_object": _Kind(),
    "gather_object": _Kind(root="dst"),
    "broadcast_object_list": _Kind(root="src"),
    "scatter_object_list": _Kind(root="src"),
}


def record_calls(log: CallLog) -> None:
    """Note the collectives of this process from now on. Nothing happens where ``torch.distributed`` was not imported."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    recorder = _Recorder(log, distributed, sys.modules["torch"].compiler.is_compiling)
    for name, kind in _KINDS.items():
        if hasattr(distributed, name):  # some are new
            setattr(distributed, name, recorder.recorded(getattr(distributed, name), name, kind))


class _Recorder:
    """Describes calls for a log.

    Args:
        log: of this process.
        distributed: ``torch.distributed``.
        is_compiling: whether the caller is being compiled, and must not be seen to do anything else.
    """

    def __init__(self, log: CallLog, distributed: Any, is_compiling: Callable[[], bool]) -> None:
        self._log = log
        self._distributed = distributed
        self._is_compiling = is_compiling
        self._files: dict[str, tuple[str, bool]] = {}
        self._groups: dict[str, _Known] = {}
        """The latest of each name."""

    def recorded(self, function: Callable[..., Any], name: str, kind: _Kind) -> Callable[..., Any]:
        """A function like this collective that also notes the call."""
        is_compiling, note = self._is_compiling, self._note
        parameters = inspect.signature(function).parameters.values()
        known = {each.name: (position, each.default) for position, each in enumerate(parameters)}

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:  # named like PyTorch's own around it
            if not is_compiling():
                note(name, kind, _Arguments(known, args, kwargs), sys._getframe(1))
            return function(*args, **kwargs)

        wrapper.__module__ = self._distributed.__name__  # where pickle finds it
        return wrapper

    def _note(self, name: str, kind: _Kind, arguments: _Arguments, caller: FrameType) -> None:
        try:
            group = arguments["group"] or self._distributed.group.WORLD
            if not isinstance(group, self._distributed.ProcessGroup):
                return  # it is not initialized, or this process is not a member
            number = group._get_sequence_number_for_group() + 1
            known = self._known(group)
            call, line = self._number_of_call(name, kind, arguments, group), self._line(caller)
            known.place += 1
            self._log.note(known.number, known.place, number, call, line)
        except Exception:
            return  # a backend that does not number its collectives, or arguments that are refused anyway

    def _known(self, group: Any) -> _Known:
        name = group.group_name
        known = self._groups.get(name)
        if known is None or known.group() is not group:
            life = 1 if known is None else known.life + 1
            what = Group(name, life, tuple(self._distributed.get_process_group_ranks(group)))
            known = self._groups[name] = _Known(weakref.ref(group), life, self._log.number_of(what, lambda: what))
        return known

    def _number_of_call(self, name: str, kind: _Kind, arguments: _Arguments, group: Any) -> int:
        tensor = arguments[kind.tensor] if kind.tensor else None
        if isinstance(tensor, Sequence):
            tensor = tensor[0] if tensor else None
        dtype = None if tensor is None else tensor.dtype
        shape = None if tensor is None or not kind.has_shape else tuple(tensor.shape)
        op = arguments["op"]
        root = arguments[kind.root] if kind.root else None
        root_in_group = arguments[f"group_{kind.root}"] if kind.root else None

        def describe() -> Call:
            sender = root
            if kind.root and sender is None:
                sender = 0 if root_in_group is None else self._distributed.get_global_rank(group, root_in_group)
            return Call(name, "" if dtype is None else str(dtype).removeprefix("torch."), shape, _name_of(op), sender)

        where = group.group_name if root_in_group is not None else ""
        known_by: Hashable = (name, dtype, shape, op, root, root_in_group, where)
        return self._log.number_of(known_by, describe)

    def _line(self, caller: FrameType) -> int:
        frame: FrameType | None = caller
        is_own: bool | None = None
        while frame is not None:
            file = frame.f_code.co_filename
            if (known := self._files.get(file)) is None:
                known = self._files[file] = owner(file), is_between(file)
            whose, passes_on = known
            if is_own is None and not passes_on:
                is_own = whose == "lockstep"
            if whose == "user":
                break
            frame = frame.f_back
        found = frame or caller

        def describe() -> Line:
            return Line(f"{found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_name}", bool(is_own))

        return self._log.number_of((found.f_code, found.f_lineno, bool(is_own)), describe)


@dataclass
class _Known:
    """A process group, of which calls are noted."""

    group: weakref.ref[Any]
    """Weak: it must end when the script ends it."""
    life: int
    number: int
    """In the log."""
    place: int = 0
    """Of the latest call."""


class _Arguments:
    """The arguments of a call by name, or their defaults; None where there is no such parameter."""

    __slots__ = ("_args", "_known", "_kwargs")

    def __init__(self, known: Mapping[str, tuple[int, Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._known, self._args, self._kwargs = known, args, kwargs

    def __getitem__(self, name: str) -> Any:
        if name in self._kwargs:
            return self._kwargs[name]
        position, default = self._known.get(name, (len(self._args), None))
        return self._args[position] if position < len(self._args) else default


def _name_of(op: Any) -> str:
    """The name of a reduction, as in ``ReduceOp``; empty: there is none."""
    return "" if op is None else str(getattr(op, "op", op)).rpartition(".")[2]
