"""Looks over the shoulder of the user's code, for what could make two runs differ. Slow: for ``trace="calls"``.

It writes *evidence*: what was done where in the user's code. That is not proof, as nearly all of it can be innocent
(a clock, to print the speed). ``kind`` is one of

==============  ========================================================================================================
``clock``       the time was read
``entropy``     randomness of the operating system was drawn: ``os.urandom``, ``secrets``, ``uuid4``, a generator without a seed
``generator``   a generator that is none of lockstep's streams, and lives on from one shard to the next, was drawn from
``rank``        which process it is, or how many there are, was read
``process``     the number of the process, or the name of the machine, was read
``worker``      which loader worker it is was read
``collective``  a collective was called inside a shard
``threads``     the number of threads was set
``state``       an attribute of a layer, data set or module, no parameter and no buffer, changed in a forward pass or a fetch
``kept``        such an attribute is another than in the step before
``weights``     a parameter of a prepared model changed inside a shard
``kernel``      (``trace="kernels"``) PyTorch warned of a kernel that is not deterministic
``file``        a file of the user's whose code has run
==============  ========================================================================================================
"""

from __future__ import annotations

import datetime
import inspect
import os
import random
import re
import socket
import sys
import time
import types
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import get_worker_info

from lockstep.digest import digest
from lockstep.measure.generators import Generators, what
from lockstep.measure.locations import Location, file_of, is_fetching, location_of, owner
from lockstep.measure.state import StateOf, WeightsOf, describe_change
from lockstep.measure.trace import TraceWriter

_CLOCKS = (
    *("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "process_time_ns"),
    *("thread_time", "localtime", "gmtime", "ctime"),
)
_COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "gather", "all_gather", "scatter", "reduce_scatter", "send", "recv", "barrier"),
    *("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "isend", "irecv"),
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "monitored_barrier"),
)
_OF_TEAM = {
    **dict.fromkeys(("rank", "local_rank", "world_size", "size", "ranks", "is_main", "world"), "rank"),
    **dict.fromkeys(
        ("all_reduce", "reduce", "broadcast", "gather", "all_gather", "scatter", "reduce_scatter", "send", "recv"),
        "collective",
    ),
    **dict.fromkeys(("all_gather_object", "broadcast_object", "new_group"), "collective"),
}
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "SLURM_PROCID")
_KERNEL = re.compile(r"(?P<kernel>\S+) does not have a deterministic implementation")


def _c_functions() -> dict[Any, tuple[str, str]]:
    """Functions in C that tell, with their kind and name."""
    found: dict[Any, tuple[str, str]] = {getattr(time, name): ("clock", f"time.{name}()") for name in _CLOCKS}
    for name in ("now", "utcnow", "today"):
        found[getattr(datetime.datetime, name)] = ("clock", f"datetime.{name}()")
    found[datetime.date.today] = ("clock", "date.today()")
    found[os.urandom] = ("entropy", "the operating system's randomness (os.urandom)")
    found[os.getpid] = ("process", "os.getpid()")
    found[os.uname] = ("process", "os.uname()")
    found[socket.gethostname] = ("process", "socket.gethostname()")
    found[torch.set_num_threads] = ("threads", "torch.set_num_threads()")
    return found


def _python_functions() -> dict[types.CodeType, tuple[str, str]]:
    """The same for functions in Python, by their code."""
    found = {
        inspect.unwrap(dist.get_rank).__code__: ("rank", "torch.distributed.get_rank()"),
        inspect.unwrap(dist.get_world_size).__code__: ("rank", "torch.distributed.get_world_size()"),
        get_worker_info.__code__: ("worker", "get_worker_info()"),
        torch.seed.__code__: ("entropy", "torch.seed()"),
    }
    for name in _COLLECTIVES:
        if hasattr(dist, name):
            found[inspect.unwrap(getattr(dist, name)).__code__] = ("collective", f"torch.distributed.{name}()")
    return found


_GET_VARIABLE = os._Environ.__getitem__.__code__
_SEED_RANDOM = random.Random.seed.__code__


class Witness:
    """Watches one process, and the loader workers forked from it.

    Args:
        run_dir: the run's directory.
        rank: of this process.
        level: ``calls``, or ``kernels`` (only ask for deterministic kernels, and note PyTorch's warnings).
    """

    def __init__(self, run_dir: Path, rank: int, level: str) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._pid = os.getpid()
        self._writer: TraceWriter | None = None
        self._writer_pid = 0
        self._seen: set[tuple[Any, ...]] = set()
        self._in_shard = False
        self._step = 0
        self._generators = Generators()
        self._num_shards = 0
        self._last: Location | None = None
        self._layers: list[list[str]] = []
        self._stack: list[tuple[str, Any]] = []
        self._fetched: StateOf | None = None
        self._weights = WeightsOf()
        self._kept: list[StateOf] = []
        self._c_functions = _c_functions()
        self._python_functions = _python_functions()
        self._calls = level == "calls"
        if self._calls:
            sys.setprofile(self._profile)
            sys.settrace(self._trace)
            frame = sys._getframe()
            while frame.f_back is not None:  # those that run already: the script's own
                frame = frame.f_back
                if owner(frame.f_code.co_filename) == "user":
                    self._write("file", "", frame.f_code.co_filename, None, "outside")
                    frame.f_trace = self._follow
        else:
            self._ask_for_deterministic_kernels()

    # What is watched

    def watch_team(self, team: Any) -> None:
        """Notice when the user's code reads who it is, or calls a collective. The object changes its class."""
        if not self._calls:
            return
        witness: Witness = self
        plain: Any = type(team)

        def __getattribute__(self: Any, name: str) -> Any:  # noqa: N807
            if name in _OF_TEAM:
                caller = sys._getframe(1)
                if owner(caller.f_code.co_filename) == "user":
                    witness._note(_OF_TEAM[name], f"team.{name}", caller)
            return plain.__getattribute__(self, name)

        team.__class__ = type(
            plain.__name__, (plain,), {"__getattribute__": __getattribute__, "__module__": plain.__module__}
        )

    def watch_model(self, prefix: str, model: nn.Module) -> None:
        """Record what each layer gets and gives, and whether it keeps something."""
        if not self._calls:
            return
        self._weights.watch(prefix, model)
        for name, module in model.named_modules():
            shown = prefix + name or "the model"
            if owner(file_of(type(module))) == "user":
                self._keep(module, _layer(shown))
            module.register_forward_pre_hook(_Before(self, shown), with_kwargs=True)
            module.register_forward_hook(_After(self), with_kwargs=True, always_call=True)

    def watch_dataset(self, dataset: Any) -> None:
        """Notice whether a data set keeps something while samples are fetched (in this process)."""
        if self._calls:
            name = f"the data set {type(dataset).__name__}"
            self._fetched = StateOf(dataset, name)
            self._keep(dataset, name)

    def _keep(self, thing: Any, name: str) -> None:
        kept = StateOf(thing, name)
        kept.look()
        self._kept.append(kept)

    # The loop

    def begin_pass(self) -> None:
        """A pass begins."""
        if self._calls:
            self._generators.look_around(thoroughly=True)
            self._generators.refresh()
            self._begin_fetching()

    def begin_step(self, step: int) -> None:
        """A step begins."""
        for kept in self._kept if self._calls else ():
            if self._step:  # before the first one, the script was still being set up
                self._note_changes(kept, "outside", "kept")
            kept.look()
        self._step = step

    def begin_shard(self) -> None:
        """A micro-step begins: its samples have been fetched."""
        self._in_shard = True
        self._layers = []
        if not self._calls:
            return
        self._num_shards += 1
        if self._num_shards < 16 or self._num_shards & (self._num_shards - 1) == 0:
            self._generators.look_around(thoroughly=False)
        self._generators.refresh()
        self._weights.look()
        if self._fetched is not None:
            self._note_changes(self._fetched, "data")

    def end_shard(self) -> list[list[str]]:
        """The script's code for it has run. What each layer got and gave."""
        if self._in_shard and self._calls:
            self._note_weights(thoroughly=True)
            self._begin_fetching()
        self._in_shard = False
        layers, self._layers = self._layers, []
        self._stack.clear()
        return layers

    def _begin_fetching(self) -> None:
        if self._fetched is not None:
            self._fetched.look()

    def close(self) -> None:
        """Stop watching."""
        if self._calls:
            sys.setprofile(None)
            sys.settrace(None)
            self._calls = False
        if self._writer is not None:
            self._writer.close()

    # Layers

    def enter_layer(self, name: str, module: nn.Module, inputs: Any) -> None:
        """A forward pass begins."""
        watched = StateOf(module, _layer(name))
        watched.look()
        self._stack.append((name, (watched, digest(inputs))))

    def leave_layer(self, module: nn.Module, output: Any) -> None:
        """It has ended."""
        if not self._stack:
            return
        name, (watched, inputs) = self._stack[-1]
        self._note_changes(watched, self._scope())
        self._stack.pop()
        if self._in_shard:
            self._layers.append([name, type(module).__name__, inputs, digest(output)])

    def _note_changes(self, watched: StateOf, scope: str, kind: str = "state") -> None:
        for change in watched.changes():
            file, line = describe_change(watched.thing, change)
            self._write(kind, f"{change} of {watched.name}" if "." not in change else change, file, line, scope)

    # Calls

    def _profile(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            try:
                found = self._c_functions.get(argument)
            except TypeError:  # of an object that cannot be hashed
                return
            if found is not None:
                self._note(*found, frame)
        elif event == "call":
            code = frame.f_code
            found = self._python_functions.get(code)
            if found is not None:
                self._note(*found, frame.f_back)
            elif code is _GET_VARIABLE:
                key = frame.f_locals.get("key")
                if key in _RANK_VARIABLES:
                    self._note("rank", f"the environment variable {key}", frame.f_back)
            elif code is _SEED_RANDOM and frame.f_locals.get("a") is None:
                self._note("entropy", "random.seed() without a number", frame.f_back)

    def _trace(self, frame: types.FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        """Called at every call: the user's own code is followed line by line, to see which line drew from a generator."""
        file = frame.f_code.co_filename
        if owner(file) != "user":
            return None
        self._write("file", "", file, None, "outside")
        if location_of(frame.f_back) is None:
            self._generators.refresh()  # what was drawn until now was drawn for lockstep: by a sampler
        return self._follow

    def _follow(self, frame: types.FrameType, event: str, argument: Any) -> Callable[..., Any]:
        for generator in self._generators.drawn():
            if self._last is not None:
                scope = "data" if is_fetching(frame) or os.getpid() != self._pid else self._scope()
                file, line = self._last
                self._write("generator", what(generator), file, line, scope)
        if self._in_shard and os.getpid() == self._pid:
            self._note_weights(thoroughly=False)
        if event == "return":
            self._last = location_of(frame.f_back)
        else:
            self._last = frame.f_code.co_filename, frame.f_lineno
        return self._follow

    def _note_weights(self, *, thoroughly: bool) -> None:
        for name in self._weights.changes(thoroughly=thoroughly):
            file, line = self._last or (None, None)
            self._write("weights", f"the weight {name} changes", file, line, "shard")

    def _scope(self) -> str:
        return "shard" if self._in_shard else "outside"

    def _note(self, kind: str, what: str, frame: types.FrameType | None) -> None:
        location = location_of(frame)
        if location is None:
            return
        scope = "data" if os.getpid() != self._pid or is_fetching(frame) else self._scope()
        if kind == "collective" and scope == "outside":
            return  # where it belongs
        self._write(kind, what, location[0], location[1], scope)

    def _write(self, kind: str, what: str, file: str | None, line: int | None, scope: str) -> None:
        layer = self._stack[-1][0] if self._stack else None
        key = (kind, what, file, line, scope, layer)
        pid = os.getpid()
        if pid != self._writer_pid:  # a loader worker writes a file of its own, and has seen nothing yet
            self._writer_pid, self._seen = pid, set()
            self._writer = TraceWriter(self._run_dir, f"evidence-{self._rank}-{pid}")
        if key in self._seen or self._writer is None:
            return
        self._seen.add(key)
        self._writer.write(kind=kind, what=what, file=file, line=line, scope=scope, layer=layer, step=self._step)

    # Kernels

    def _ask_for_deterministic_kernels(self) -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)
        warnings.filterwarnings("always", message=".*deterministic implementation.*")
        show = warnings.showwarning

        def note(message: Any, category: type[Warning], *rest: Any, **options: Any) -> None:
            found = _KERNEL.search(str(message))
            if found is None:
                show(message, category, *rest, **options)
                return
            file, line = location_of(sys._getframe(1)) or (None, None)
            self._write("kernel", found["kernel"], file, line, self._scope())

        warnings.showwarning = note


def _layer(name: str) -> str:
    return name if name == "the model" else f"layer {name}"


class _Before:
    """A forward pre-hook of one layer."""

    def __init__(self, witness: Witness, name: str) -> None:
        self._witness = witness
        self._name = name

    def __call__(self, module: nn.Module, arguments: Any, options: Mapping[str, Any]) -> None:
        self._witness.enter_layer(self._name, module, (arguments, options))


class _After:
    """A forward hook of one layer."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    def __call__(self, module: nn.Module, arguments: Any, options: Mapping[str, Any], output: Any) -> None:
        self._witness.leave_layer(module, output)
