"""A trace of some steps by PyTorch's profiler: every operator and kernel, on a time line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import override

from lockstep.base.regular import own_directory
from lockstep.base.stopping import say
from lockstep.listener import Listener, Stage


def profile_path(run_dir: Path, rank: int) -> Path:
    """The path of a rank's trace."""
    return run_dir / "profile" / f"rank-{rank}.json"


class StepProfiler(Listener):
    """Profiles this process from the beginning of step ``first`` to the end of step ``last``.

    Args:
        first: a run that resumes after it begins with the step at which it resumes.
        last: may be later than the run's last step.
        path: of the trace, in the format of Chrome and Perfetto.
        is_main: whether this process prints where the traces are.
    """

    stage = Stage.LATE

    def __init__(self, first: int, last: int, path: Path, *, is_main: bool) -> None:
        self._is_main = is_main
        self._first = first
        self._last = last
        self._path = path
        self._profile: Any = None

    @override
    def begin_step(self, step: int) -> None:
        if self._profile is None and self._first <= step <= self._last:
            from torch import profiler  # slow: imported only if a run is profiled

            self._profile = profiler.profile(record_shapes=True)
            self._profile.start()

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        if step >= self._last:
            self._write(step)

    @override
    def end_run(self, step: int, *, failed: bool) -> None:
        self._write(step)

    def _write(self, step: int) -> None:
        if self._profile is None:
            return
        self._profile.stop()
        own_directory(self._path.parent)
        self._path.unlink(missing_ok=True)  # PyTorch would write through a link
        self._profile.export_chrome_trace(str(self._path))
        self._profile, self._last = None, 0
        if self._is_main:
            say(
                f"the profile of the steps up to {step} is in {self._path.parent}: open its files in https://ui.perfetto.dev"
            )
