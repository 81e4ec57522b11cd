"""The black box of each worker of ``lockstep run``, in the launch's private directory.

It serves scripts that never call ``lockstep.join``, and others until they do. Their progress is
known from the optimizer steps that PyTorch's hook reports, and from the collectives that they have
finished.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep._tools.explain.black_box import box_path
from lockstep._tools.explain.call_ring import ring_path
from lockstep._tools.explain.flight_recorder import counts, has_recorded
from lockstep._tools.explain.frames import stack_of
from lockstep._tools.explain.recorded_calls import offer, recent_calls, record_calls
from lockstep._tools.explain.sampler import Sampler, about_process, has_ended
from lockstep._tools.explain.saved_files import NotedSaves
from lockstep._tools.explain.threads import doing_at


class Steps:
    """Counts the optimizer steps of this process, once torch is there, until it is closed."""

    def __init__(self) -> None:
        self.count = 0
        self._hook: Any = None
        self._is_closed = False
        self.look()

    def look(self) -> None:
        """Called again and again: torch is never imported for this."""
        if self._hook is None and not self._is_closed:
            optimizers = sys.modules.get("torch.optim.optimizer")
            # missing while it is being imported
            register = getattr(optimizers, "register_optimizer_step_post_hook", None)
            self._hook = None if register is None else register(self._end)

    def close(self) -> None:
        """Remove the hook."""
        self._is_closed = True
        if self._hook is not None:
            self._hook.remove()

    def _end(self, *_: Any) -> None:
        # it must not be compiled into the script's graph
        if not sys.modules["torch"].compiler.is_compiling():
            self.count += 1


class Meetings:
    """Whether this process has ever communicated with others of its launch: begun a collective,
    sent or received a message, or loaded a library that communicates by other means."""

    def __init__(self) -> None:
        self._has_met = False

    def look(self, begun: Mapping[str, int]) -> bool:
        """What is known by now. ``begun``: see ``Counts``."""
        if not self._has_met:
            # (PyTorch's recorder knows no messages on Gloo: a pipeline may have no collective at
            # all.)
            has_called = any(begun.values()) or bool(recent_calls(1))
            self._has_met = has_called or not _OTHER_WAYS.isdisjoint(sys.modules)
        if not self._has_met and has_ended():  # a group may have come and gone between two looks
            self._has_met = has_recorded()
        return self._has_met


_OTHER_WAYS = frozenset({"horovod", "mpi4py", "ray", "jax", "bagua", "oneccl_bindings_for_pytorch", "cupy.cuda.nccl"})
"""Modules of libraries by which processes may meet without PyTorch's collectives."""
_LIBRARIES = ("accelerate",)
"""The libraries for which the way to connect processes is known."""


class Collectives:
    """Counts the collectives that this process has finished. While it has no process group the last
    count lasts."""

    def __init__(self) -> None:
        self._before = self._newest = 0

    def count(self, newest: int) -> int:
        """The number in all groups that ever existed. Called from one thread. ``newest``: the
        number in the present groups."""
        if newest:
            self._before += self._newest if newest < self._newest else 0
            self._newest = newest
        return self._before + self._newest


class WorkerBox:
    """Starts the black box of this process. Must be created by the main thread.

    Args:
        private_dir: of the launch.
        rank: of this process.
        world_size: of the launch.
        program: what is run, for the user.
    """

    def __init__(self, private_dir: str, rank: int, world_size: int, program: str) -> None:
        self._steps, self._collectives, self._thread_id = Steps(), Collectives(), threading.get_ident()
        self._meetings = Meetings()
        offer(ring_path(Path(private_dir), rank))
        record_calls()
        self._saves = NotedSaves(Path(private_dir), rank)
        self._saves.begin()
        about = about_process(rank, world_size, socket.gethostname(), Path(private_dir).name, program=program)
        try:
            Sampler(box_path(Path(private_dir), rank), about, self._doing, self._step, replaced=self._steps.close)
        except OSError:  # the script runs without a black box
            self._steps.close()

    def _step(self) -> int:
        """Called from another thread."""
        return self._steps.count or self._collectives.count(counts().num_done)

    def _doing(self) -> dict[str, Any]:
        """Called from another thread."""
        self._steps.look()
        self._saves.begin()
        counted = counts()
        return {
            "activity": doing_at(stack_of(sys._current_frames().get(self._thread_id))),
            "num_done": self._collectives.count(counted.num_done),
            "step": self._steps.count,
            "met": self._meetings.look(counted.begun),
            "library": next((name for name in _LIBRARIES if name in sys.modules), ""),
        }
