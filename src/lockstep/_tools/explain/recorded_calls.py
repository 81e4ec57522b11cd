"""Notes every collective that this process calls from Python, in a ring (``call_ring``).

PyTorch's recorder is not enough. It lacks the op and the root of a collective, it lacks messages to
single ranks on Gloo, reading it takes milliseconds, and it dies with a process that is aborted.

The methods of ``ProcessGroup`` are wrapped, not the functions of ``torch.distributed``. All
functions lead through these methods, and the functions stay the same objects: a script may have
imported, pickled or compiled them before. Calls that DistributedDataParallel and compiled code make
in C++ pass no Python method, so only PyTorch's recorder has them.

::

    script -> dist.all_reduce -> ProcessGroup.allreduce (wrapped) -> backend
                                   |
                                   +-- note(kind, shapes, op, root, line) -> CallRing, before the call
"""

from __future__ import annotations

import functools
import sys
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from lockstep._base.tracebacks.frames import owner
from lockstep._tools.explain.call_ring import CallRing, NotedCall, describe
from lockstep._tools.explain.collective_calls import Call
from lockstep._tools.explain.frames import is_between
from lockstep._tools.explain.own_calls import via_of

_MOST_KNOWN = 5000
_MOST_FRAMES = 60
_DTYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "half",
    "int64": "long",
    "int32": "int",
    "int16": "short",
    "int8": "char",
    "uint8": "byte",
}
"""Names of types that the recorder calls something else."""


@dataclass(frozen=True)
class _Kind:
    """How a method of ``ProcessGroup`` is called."""

    name: str
    """The collective's name in PyTorch's recorder."""
    tensors: int | None = 0
    """The position of the tensors among the arguments; None: the method takes none."""
    options: int | None = None
    """The position of the options, which contain the op or the root; None: there are none."""
    has_root: bool = False
    peer: int | None = None
    """The position of the rank that a message goes to or comes from; None: it is no message."""
    is_message: bool = False
    num_numbers: int | None = None
    """The number of sequence numbers that the recorder gives one call; None: as many as the group
    counts, which on Gloo also numbers messages to single ranks."""


_KINDS = {
    "allreduce": _Kind("all_reduce", options=1),
    "allreduce_coalesced": _Kind("all_reduce", options=1),
    "broadcast": _Kind("broadcast", options=1, has_root=True),
    "reduce": _Kind("reduce", options=1, has_root=True),
    "allgather": _Kind("all_gather", tensors=1),
    "_allgather_base": _Kind("all_gather_into_tensor", tensors=1),
    "all_gather_single": _Kind("all_gather_into_tensor", tensors=1),
    "allgather_coalesced": _Kind("all_gather", tensors=1),
    "gather": _Kind("gather", tensors=1, options=2, has_root=True),
    "scatter": _Kind("scatter", options=2, has_root=True),
    "reduce_scatter": _Kind("reduce_scatter", options=2),
    "_reduce_scatter_base": _Kind("reduce_scatter_tensor", tensors=1, options=2),
    "reduce_scatter_single": _Kind("reduce_scatter_tensor", tensors=1, options=2),
    "alltoall": _Kind("all_to_all", tensors=1),
    "alltoall_base": _Kind("all_to_all", tensors=1),
    "all_to_all_single": _Kind("all_to_all", tensors=1),
    "barrier": _Kind("barrier", tensors=None),
    "monitored_barrier": _Kind("monitored_barrier", tensors=None, num_numbers=2),
    "send": _Kind("send", peer=1, is_message=True, num_numbers=0),
    "recv": _Kind("recv", peer=1, is_message=True, num_numbers=0),
    "recv_anysource": _Kind("recv", is_message=True, num_numbers=0),
}


def record_calls() -> None:
    """Note the collectives of this process from now on, unless they are. Nothing happens while
    ``torch.distributed`` is not imported."""
    global _ring
    distributed = sys.modules.get("torch.distributed")
    # missing while it is being imported, and in builds without it
    groups = getattr(distributed, "ProcessGroup", None)
    if _ring is not None or groups is None or getattr(distributed, "get_process_group_ranks", None) is None:
        return
    _ring = CallRing(_path)
    recorder = _Recorder(_ring, distributed)
    for name, kind in _KINDS.items():
        if (method := getattr(groups, name, None)) is not None:  # versions have different names
            setattr(groups, name, recorder.recorded(method, kind))


def recent_calls(count: int) -> list[NotedCall]:
    """The latest calls of this process, oldest first."""
    return [] if _ring is None else _ring.recent(count)


def offer(path: Path) -> None:
    """Let ``record_calls`` use this ring of the launcher's from now on."""
    global _path
    _path = path


_ring: CallRing | None = None
_path: Path | None = None


class _Group:
    """What is known of a process group."""

    def __init__(self, group: Any, name: str, life: int, ranks: Sequence[int]) -> None:
        self.is_of = weakref.ref(group)
        self.name, self.life, self.ranks = name, life, ranks
        self.num_messages = 0
        """The number of sequence numbers that the backend has given to messages to single ranks."""


class _Recorder:
    """Describes calls for a ring.

    Args:
        ring: of this process.
        distributed: ``torch.distributed``.
    """

    def __init__(self, ring: CallRing, distributed: Any) -> None:
        self._ring = ring
        self._distributed = distributed
        self._codes: dict[CodeType, str] = {}
        """The owner of each function that was seen on a stack."""
        self._groups: dict[int, _Group] = {}
        self._lives: dict[str, int] = {}
        self._known: dict[Any, bytes] = {}

    def recorded(self, method: Callable[..., Any], kind: _Kind) -> Callable[..., Any]:
        """A method like this one that also notes the call."""
        ring, note, num_numbers = self._ring, self._note, kind.num_numbers

        @functools.wraps(method)
        # named like PyTorch's own around it
        def wrapper(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not ring.is_open:
                return method(group, *args, **kwargs)
            known = note(kind, group, args, kwargs, sys._getframe(1))
            if num_numbers is None or known is None:
                return method(group, *args, **kwargs)
            # Gloo numbers messages and collectives with one counter, PyTorch's recorder with two.
            # What the backend's counter moved beyond the recorder's is subtracted from then on, so
            # that a noted call and a recorded one of the same collective have equal numbers.
            before = _number_or_none(group)
            try:
                return method(group, *args, **kwargs)
            finally:
                after = _number_or_none(group)
                if before is not None and after is not None:
                    known.num_messages += max(after - before - num_numbers, 0)

        return wrapper

    def _note(self, kind: _Kind, group: Any, args: Any, kwargs: Any, caller: FrameType) -> _Group | None:
        """Note a call; returns what is known of its group. No error here may affect the caller."""
        try:
            known = self._groups.get(id(group))
            if known is None or known.is_of() is not group:
                known = self._learn(group)
            tensors = args[kind.tensors] if kind.tensors is not None and len(args) > kind.tensors else ()
            if not isinstance(tensors, (list, tuple)):
                tensors = (tensors,)
            first = tensors[0] if tensors else None
            dtype = shapes = None
            if first is not None and not isinstance(first, (list, tuple)):
                dtype = first.dtype
                shapes = first.shape if len(tensors) == 1 else tuple(tensor.shape for tensor in tensors)
            options = kwargs.get("opts") if kind.options is None or len(args) <= kind.options else args[kind.options]
            op = None if options is None else getattr(options, "reduceOp", None)
            root = options.rootRank if kind.has_root and options is not None else None
            if kind.peer is not None and len(args) > kind.peer:
                root = args[kind.peer]
            via, code, line = self._called_at(caller)
            key = kind.name, dtype, shapes, len(tensors), None if op is None else op.op, root, known, via, code, line
            if (what := self._known.get(key)) is None:
                what = self._describe(*key)
            self._ring.note(0 if kind.is_message else _number_of(group) + 1 - known.num_messages, what)
            return known
        except Exception:
            # a backend that does not number its collectives, or arguments that are refused anyway
            return None

    def _learn(self, group: Any) -> _Group:
        name = str(group.group_name)
        # Names of groups repeat: after destroy_process_group, and between groups of different
        # ranks. All ranks of a group count its openings alike, so the hash of count and ranks is
        # the same on them and tells groups of one name apart.
        count = self._lives[name] = self._lives.get(name, 0) + 1
        if len(self._groups) > _MOST_KNOWN:
            self._groups.clear()
        ranks = self._distributed.get_process_group_ranks(group)
        life = zlib.crc32(repr((count, *ranks)).encode())
        known = self._groups[id(group)] = _Group(group, name, life, ranks)
        return known

    def _describe(
        self, name: str, dtype: Any, shapes: Any, num: int, op: Any, root: Any, known: _Group, *where: Any
    ) -> bytes:
        via, code, line = where
        if root is not None and 0 <= root < len(known.ranks):
            root = known.ranks[root]
        called = str(dtype).removeprefix("torch.") if dtype is not None else ""
        shape = () if shapes is None else tuple(map(tuple, shapes)) if num > 1 else (tuple(shapes),)
        call = Call(name, _DTYPES.get(called, called), shape, "" if op is None else str(op.name), root)
        at = "" if code is None else f"{code.co_filename}:{line} in {code.co_name}"
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        what = describe(known.name, known.life, call, via, at)
        self._known[(name, dtype, shapes, num, op, root, known, *where)] = what
        return what

    def _called_at(self, caller: FrameType) -> tuple[str, CodeType | None, int]:
        """The outermost of PyTorch's functions that lead to the call, or what lockstep does by it;
        and the line of the user's code.

        The stack is walked from inside to outside. The first frame that does more than pass the
        call on decides whose call it is: lockstep's, or the user's.
        """
        frame: FrameType | None = caller
        codes, via, own = self._codes, "", None
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            whose = codes.get(code) or self._whose(code)
            if whose == "user":
                return (via_of(own) if own else via), code, frame.f_lineno
            if whose == "torch":
                via = code.co_name
            elif whose == "lockstep" and own is None:
                own = code.co_filename
            elif whose != "between" and own is None and whose != "wrapper":
                own = ""
            frame = frame.f_back
        return (via_of(own) if own else via), None, 0

    def _whose(self, code: CodeType) -> str:
        file = code.co_filename
        whose = owner(file)
        if "/torch/distributed/" in file or "/torch/nn/parallel/" in file:
            whose = "wrapper" if code.co_name == "wrapper" else "torch"
        elif is_between(file) and whose != "user":
            whose = "between"
        self._codes[code] = whose
        return whose


def _number_or_none(group: Any) -> int | None:
    """The number of the latest collective of a group; None: the backend does not number them, as
    MPI's and backends of other packages do not."""
    try:
        return _number_of(group)
    except Exception:
        return None


def _number_of(group: Any) -> int:
    """The number of the latest collective of a group. (PyTorch has no public name for it.)"""
    return int(group._get_sequence_number_for_group())
