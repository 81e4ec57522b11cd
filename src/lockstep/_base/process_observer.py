"""Observes a process of a run, from its start to its exit: the seam between a program's process and
the tools that explain it.

``lockstep run`` reports its workers, and ``lockstep.join`` reports the exit of a process that
another launcher started. Observers are extensions of the kind ``process_observers``, each created
without arguments. There may be none."""

from __future__ import annotations

import functools
from collections.abc import Callable

from lockstep._base.observers import Observers


class ProcessObserver:
    """Base class of observers of a process. Its methods do nothing until you override them.

    lockstep calls them in the main thread. It drops an ``Exception`` that one raises, so that an
    observer cannot stop the program. Under ``lockstep run``, the fork server creates an observer
    once for all workers, so it must not start a thread or initialize CUDA before ``begin``.
    """

    def begin(self, private_dir: str, rank: int, world_size: int, program: str) -> None:
        """Receives the start of a program in a worker of ``lockstep run``. It is called once, after
        the fork.

        Args:
            private_dir: the private directory of the launch, which the launcher's observers
                (``Launch.private_dir``) also receive.
            rank: the rank of this process.
            world_size: the number of processes of the launch.
            program: the program, as text for the user.
        """

    def end(self, how: str) -> None:
        """Receives how the program has finished without a failure. Threads, exit handlers and
        children may still run."""

    def fail(self, traceback: str) -> None:
        """Receives the traceback with which the program has failed."""

    def explain_error(self, error: BaseException) -> str:
        """Returns an explanation of an uncaught error, in one or more paragraphs; empty: none."""
        return ""


def tell(what: Callable[[ProcessObserver], object]) -> None:
    """Calls a method of each observer: ``tell(lambda observer: observer.end("..."))``."""
    installed().tell(what)


def explain_error(error: BaseException) -> str:
    """Returns the first explanation that an observer has for an uncaught error; empty: none."""
    return installed().ask(lambda observer: observer.explain_error(error)) or ""


@functools.cache
def installed() -> Observers[ProcessObserver]:
    """Returns the observers, imported at the first call. The fork server calls it before it forks,
    for all its workers."""
    return Observers("process_observers")
