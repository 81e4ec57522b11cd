"""Functions whose calls are evidence: the kind of evidence, and the name that users know."""

from __future__ import annotations

import datetime
import inspect
import os
import random
import socket
import time
import types
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info

from lockstep.joining import team
from lockstep.world.comm import collectives

_CLOCKS = (
    *("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "process_time_ns"),
    *("thread_time", "localtime", "gmtime", "ctime"),
)
_OF_BOTH = (
    *("all_reduce", "reduce", "broadcast", "gather", "all_gather", "scatter", "reduce_scatter", "send", "recv"),
    "all_gather_object",
)
_COLLECTIVES = (
    *(*_OF_BOTH, "barrier", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "isend"),
    *("irecv", "broadcast_object_list", "gather_object", "scatter_object_list", "monitored_barrier"),
)
_OF_TEAM = {
    **dict.fromkeys(("rank", "local_rank", "world_size", "size", "ranks", "is_main", "world"), "rank"),
    **dict.fromkeys((*_OF_BOTH, "broadcast_object", "new_group"), "collective"),
}
_TEAM_FILES = (team.__file__, collectives.__file__)
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "SLURM_PROCID")
_GET_VARIABLE = os._Environ.__getitem__.__code__
_SEED_RANDOM = random.Random.seed.__code__

Call = tuple[str, str]
"""The kind of evidence, and the function's name."""


def functions_in_c() -> dict[Any, Call]:
    """Functions implemented in C."""
    functions: dict[Any, Call] = {getattr(time, name): ("clock", f"time.{name}()") for name in _CLOCKS}
    for name in ("now", "utcnow", "today"):
        functions[getattr(datetime.datetime, name)] = ("clock", f"datetime.{name}()")
    functions[datetime.date.today] = ("clock", "date.today()")
    functions[os.urandom] = ("entropy", "the operating system's randomness (os.urandom)")
    functions[os.getpid] = ("process", "os.getpid()")
    functions[os.uname] = ("process", "os.uname()")
    functions[socket.gethostname] = ("process", "socket.gethostname()")
    functions[torch.set_num_threads] = ("threads", "torch.set_num_threads()")
    return functions


def functions_in_python() -> dict[types.CodeType, Call]:
    """Functions implemented in Python, by their code object."""
    functions = {
        inspect.unwrap(dist.get_rank).__code__: ("rank", "torch.distributed.get_rank()"),
        inspect.unwrap(dist.get_world_size).__code__: ("rank", "torch.distributed.get_world_size()"),
        get_worker_info.__code__: ("worker", "get_worker_info()"),
        torch.seed.__code__: ("entropy", "torch.seed()"),
    }
    for name in _COLLECTIVES:
        if hasattr(dist, name):
            functions[inspect.unwrap(getattr(dist, name)).__code__] = ("collective", f"torch.distributed.{name}()")
    return functions


def call_by_frame(frame: types.FrameType) -> Call | None:
    """The evidence of a call that depends on its arguments, or is a method or property of the team."""
    code = frame.f_code
    if code.co_name in _OF_TEAM and code.co_filename in _TEAM_FILES:
        return _OF_TEAM[code.co_name], f"team.{code.co_name}"
    if code is _GET_VARIABLE and (key := frame.f_locals.get("key")) in _RANK_VARIABLES:
        return "rank", f"the environment variable {key}"
    if code is _SEED_RANDOM and frame.f_locals.get("a") is None:
        return "entropy", "random.seed() without a number"
    return None
