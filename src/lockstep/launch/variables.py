"""Environment variables that take effect when torch is imported, which the fork server has done before a worker has its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from lockstep.world.environment import threads_asked
from lockstep.world.machine.threads import libraries, set_number

_OF_BLAS = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "blis": "BLIS_NUM_THREADS"}
"""Environment variables that set the number of threads of one BLAS alone."""


def apply_to_torch(environ: Mapping[str, str], share: int, nproc: int) -> None:
    """Have the imported torch, and NumPy, do what these variables say, as far as that can be changed.

    Numbers of threads follow from the share of the cores where no variable says otherwise. (torchrun sets OMP_NUM_THREADS=1 for
    the same reason.) For scripts that do not call ``lockstep.join``, which sets them from the run's settings.

    Args:
        share: this worker's share of the cores.
        nproc: processes on this machine.
    """
    asked, torch = threads_asked(environ), sys.modules.get("torch")
    if torch is not None:
        # A torch that computes with MKL asks that for its number.
        asked_of_torch = (threads_asked(environ, _OF_BLAS["mkl"]) if torch.backends.mkl.is_available() else None) or asked
        if nproc > 1 or asked_of_torch:
            torch.set_num_threads(asked_of_torch or share)
    for library in libraries():
        of_blas = threads_asked(environ, _OF_BLAS.get(library.internal_api, "")) or asked
        # OpenBLAS, NumPy's usual one, also with one process: the server has loaded it with one thread.
        if library.user_api == "blas" and (nproc > 1 or library.internal_api == "openblas" or of_blas):
            set_number(library, of_blas or share)
    distributed, level = sys.modules.get("torch.distributed"), environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    levels = getattr(getattr(distributed, "DebugLevel", None), "__members__", {})
    if distributed is not None and level in levels:
        distributed.set_debug_level(levels[level])
