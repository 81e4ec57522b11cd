"""The number of this process, and the code that only one process runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import lockstep


class Processes:
    """The part of ``Accelerator`` about ranks. The script sees one process, whose index is this
    rank."""

    num_processes = 1
    """The number of processes that the script sees. The run's number is
    ``accelerator.team.world_size``."""
    use_distributed = multi_device = False
    split_batches = True
    """Whether batches of loaders are global batches. They always are."""
    even_batches = dispatch_batches = False

    def __init__(self, team: lockstep.Team) -> None:
        self.team = team
        self.device = team.device
        self._is_triggered = False

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return self.team.rank

    @property
    def local_process_index(self) -> int:
        """The number of this process on its machine."""
        return self.team.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.team.is_main

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first rank of its machine."""
        return self.team.local_rank == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is rank 0, the script's only process."""
        return self.team.is_main

    def print(self, *values: Any, **options: Any) -> None:
        """Prints on rank 0."""
        self.team.print(*values, **options)

    def wait_for_everyone(self) -> None:
        """Waits until every rank calls it."""
        self.team.barrier()

    def main_process_first(self) -> contextlib.AbstractContextManager[None]:
        """Runs the block on rank 0 first. Every rank must enter it."""
        return self.team.main_first()

    def local_main_process_first(self) -> contextlib.AbstractContextManager[None]:
        """Runs the block on rank 0 first, like ``main_process_first``."""
        return self.team.main_first()

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that does nothing on ranks other than 0."""
        return _only(function, lambda: self.is_main_process)

    on_last_process = on_main_process

    def on_local_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that does nothing except on the first rank of each machine."""
        return _only(function, lambda: self.is_local_main_process)

    def set_trigger(self) -> None:
        """Makes the next ``check_trigger`` return True on every rank."""
        self._is_triggered = True

    def check_trigger(self) -> bool:
        """Returns whether any rank called ``set_trigger`` since the last check. Every rank must
        call it."""
        triggered, self._is_triggered = self._is_triggered, False
        return self.team.any(triggered)


def _only(function: Callable[..., Any], is_here: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if is_here() else None

    return run
