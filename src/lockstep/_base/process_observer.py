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
    """Base class of observers, with methods that do nothing. They are called in the main thread,
    and an ``Exception`` that one raises is dropped, so that it cannot stop the program.

    Under ``lockstep run`` an observer is created in the fork server, once for all workers. It must
    therefore not start a thread, nor initialize CUDA, before ``begin``."""

    def begin(self, private_dir: str, rank: int, world_size: int, program: str) -> None:
        """A worker of ``lockstep run`` is about to run its program. Called once, after the fork.

        Args:
            private_dir: the private directory of the launch, which the launcher's observers
                (``launch.observer``) also know.
            rank: the rank of this process.
            world_size: the number of processes of the launch.
            program: the program, as text for the user.
        """

    def end(self, how: str) -> None:
        """The program has finished without a failure. Threads, exit handlers and children may still
        run."""

    def fail(self, traceback: str) -> None:
        """The program has failed with this traceback."""

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
