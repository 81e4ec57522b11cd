"""Starting the processes of a run on this machine, watching them, and ending all of them.

- entries: ``function.launch`` for scripts and notebooks, ``script.run_script`` for the command
  line; ``local``: on this machine
- before it: ``options``, ``nodes``, ``source``, ``program``, ``surroundings``, ``gpus``,
  ``binding``
- the fork server: ``server`` (the launcher's end), ``serve`` (the server's process), ``guard``; a
  worker: ``spec``, ``worker``
- running: ``supervise``, ``forked``, ``stages``, ``signals``, ``messages``, ``output``,
  ``lingering``
- what explains it, if it is installed: ``observer``, ``explained``
- failures, the end: ``failures``, ``restarts``, ``processes``, ``private`` (the directory),
  ``ending`` (its mark)
- several machines: ``endpoint``, ``secret``, ``elastic``

Only ``elastic`` imports torch in the process that launches.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    # ``lockstep.launch`` is a public function, and this package as soon as any of its modules is
    # imported (as in every worker). A callable package serves as both.
    def __call__(self, fn: Any, *args: Any, **options: Any) -> Any:
        from lockstep._launch.function import launch

        return launch(fn, *args, **options)


sys.modules[__name__].__class__ = _CallablePackage
