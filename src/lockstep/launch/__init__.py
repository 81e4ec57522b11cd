"""Starting the processes of a run on this machine, watching them, and ending all of them.

``function.launch`` is for scripts and notebooks, ``script.run_script`` for the command line; both put the same pieces
together: ``spec`` (what a worker is), ``server`` and ``serve`` (the two ends of the fork server), ``worker`` (what runs
in a worker), ``messages`` (what workers tell the launcher), ``supervise`` (start, watch, end) and its ``stages``, ``restarts``,
``standstill``, ``private`` (the directory), ``ending`` (a mark in it), ``output``, ``failures``, ``processes``.

Nothing here imports torch in the process that launches.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    # ``lockstep.launch`` is the function in the list of public names, and this package as soon as any module of it is
    # imported (in every worker, for one). Both names stay right if the package can be called.
    def __call__(self, fn: Any, *args: Any, **options: Any) -> Any:
        from lockstep.launch.function import launch

        return launch(fn, *args, **options)


sys.modules[__name__].__class__ = _CallablePackage
