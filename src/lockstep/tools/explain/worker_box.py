"""The black box of each worker of ``lockstep run``, in the launch's private directory.

It serves scripts that never call ``lockstep.join``, and others until they do. Their progress is known from the optimizer steps
that PyTorch's hook reports, and from the collectives that they have finished.
"""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path
from typing import Any

from lockstep.tools.explain.black_box import box_path
from lockstep.tools.explain.flight_recorder import counts
from lockstep.tools.explain.frames import stack_of
from lockstep.tools.explain.sampler import Sampler, about_process
from lockstep.tools.explain.threads import doing_at


class Steps:
    """Counts the optimizer steps of this process, until it is closed. Must be created by the main thread."""

    def __init__(self) -> None:
        self.count = 0
        optimizers = sys.modules.get("torch.optim.optimizer")  # never imported for this
        self._hook = None if optimizers is None else optimizers.register_optimizer_step_post_hook(self._end)

    def close(self) -> None:
        """Remove the hook."""
        if self._hook is not None:
            self._hook.remove()

    def _end(self, *_: Any) -> None:
        if not sys.modules["torch"].compiler.is_compiling():  # it must not be compiled into the script's graph
            self.count += 1


class WorkerBox:
    """Starts the black box of this process. Must be created by the main thread.

    Args:
        private_dir: of the launch.
        rank: of this process.
        world_size: of the launch.
        program: what is run, for the user.
    """

    def __init__(self, private_dir: str, rank: int, world_size: int, program: str) -> None:
        self._steps, self._thread_id = Steps(), threading.get_ident()
        about = about_process(rank, world_size, socket.gethostname(), Path(private_dir).name, program=program)
        try:
            Sampler(box_path(Path(private_dir), rank), about, self._doing, replaced=self._steps.close)
        except OSError:  # the script runs without a black box
            self._steps.close()

    def _doing(self) -> dict[str, Any]:
        """Called from another thread."""
        return {
            "activity": doing_at(stack_of(sys._current_frames().get(self._thread_id))),
            "num_done": counts().num_done,
            "step": self._steps.count,
        }
