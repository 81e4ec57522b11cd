"""What makes a worker, a copy of the fork server, look like a fresh process: modules next to the
script take precedence over modules that the server has imported, and the imported torch does what
the worker's variables say."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Mapping

from lockstep._world.environment import threads_asked
from lockstep._world.machine.threads import libraries, set_number

_SHARED = frozenset(("torch", "numpy", "lockstep"))
"""Packages that stay imported whatever is next to the script: native code cannot be loaded
twice."""
at_start: frozenset[str] = frozenset()
"""The modules that the interpreter itself had imported before the fork server did: no script can
shadow those."""


def forget_shadowed(directory: str) -> None:
    """Forgets imported modules that python would rather import from the script's directory, the
    first entry of ``sys.path``: ``code.py`` next to the script, and not the standard library's.
    A module that has already imported one of them keeps it."""
    beside = set[str]()
    with contextlib.suppress(OSError):
        beside = {entry.partition(".")[0] for entry in os.listdir(directory)}  # noqa: PTH208
    for name in beside & sys.modules.keys() - at_start - _SHARED:
        module, spec = sys.modules[name], importlib.machinery.PathFinder.find_spec(name, [directory])
        # Python looks for these before it looks in any directory, so a file cannot shadow them.
        is_first = name in sys.builtin_module_names or importlib.machinery.FrozenImporter.find_spec(name) is not None
        if is_first or spec is None or not spec.has_location or spec.origin == getattr(module, "__file__", None):
            continue
        for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
            del sys.modules[known]


def apply_to_torch(environ: Mapping[str, str], share: int, nproc: int) -> None:
    """Has the imported torch, and NumPy, do what these variables say, as far as that can be
    changed.

    Numbers of threads follow from the share of the cores where no variable sets them.
    (torchrun sets OMP_NUM_THREADS=1 for the same reason.) For scripts that do not call
    ``lockstep.join``, which sets them from the run's settings.

    Args:
        share: this worker's share of the cores.
        nproc: processes on this machine.
    """
    asked, torch = threads_asked(environ), sys.modules.get("torch")
    if torch is not None and (nproc > 1 or asked):
        torch.set_num_threads(asked or share)
    for library in libraries():
        # OpenBLAS, NumPy's usual one, also with one process: the server has loaded it with one
        # thread.
        if library.user_api == "blas" and (nproc > 1 or library.internal_api == "openblas" or asked):
            set_number(library, asked or share)
    distributed, level = sys.modules.get("torch.distributed"), environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    levels = getattr(getattr(distributed, "DebugLevel", None), "__members__", {})
    if distributed is not None and level in levels:
        distributed.set_debug_level(levels[level])
