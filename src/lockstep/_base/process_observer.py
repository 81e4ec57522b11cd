"""What observes a process of a run, from its start to its end: the seam between a program's process
and what explains it.

``lockstep run`` tells of its workers, and ``lockstep.join`` of the end of a process that another
launcher has started. The observers are extensions of the kind ``process_observers``, each called
without arguments; there need not be any."""

from __future__ import annotations

import functools
from collections.abc import Callable

from lockstep._base.observers import Observers


class ProcessObserver:
    """Base class of observers, with methods that do nothing. They are called in the main thread,
    and an ``Exception`` that one raises is dropped: the program matters more.

    Under ``lockstep run`` an observer is made in the fork server, once for all workers: so it must
    not start a thread, nor initialize CUDA, before ``begin``.
    """

    def begin(self, private_dir: str, rank: int, world_size: int, program: str) -> None:
        """A worker of ``lockstep run`` is about to run its program. Called once, after the fork.

        Args:
            private_dir: of the launch; its launcher's observers (``launch.observer``) know it too.
            rank: of this process.
            world_size: of the launch.
            program: what is run, for the user.
        """

    def end(self, how: str) -> None:
        """The program has ended, without a failure. Threads, exit handlers and children may still
        run."""

    def fail(self, traceback: str) -> None:
        """The program has failed, with this traceback."""

    def explain_error(self, error: BaseException) -> str:
        """An explanation of an uncaught error, in one or more paragraphs; empty: there is none."""
        return ""


def tell(what: Callable[[ProcessObserver], object]) -> None:
    """Call a method of each observer: ``tell(lambda observer: observer.end("..."))``."""
    installed().tell(what)


def explain_error(error: BaseException) -> str:
    """The first explanation that an observer has for an uncaught error; empty: none has one."""
    return installed().ask(lambda observer: observer.explain_error(error)) or ""


@functools.cache
def installed() -> Observers[ProcessObserver]:
    """The observers, imported at the first call. The fork server calls it before it forks, for all
    its workers."""
    return Observers("process_observers")
