"""Environment variables that take effect when torch is imported, which a worker's has been before the script could set them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping

from lockstep.base.stopping import say
from lockstep.world.environment import threads_asked
from lockstep.world.machine.threads import libraries, set_number

_OF_BLAS = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "blis": "BLIS_NUM_THREADS"}
"""Environment variables that set the number of threads of one BLAS alone."""
_TOO_LATE = {
    "torch": re.compile(
        "OMP_(WAIT_POLICY|PROC_BIND|PLACES|DYNAMIC|NESTED|MAX_ACTIVE_LEVELS|SCHEDULE|STACKSIZE)|GOMP_.*|KMP_(AFFINITY|BLOCKTIME)|"
        "MKL_THREADING_LAYER|TORCH_(LOGS.*|TRACE|CPP_LOG_LEVEL|DEVICE_BACKEND_AUTOLOAD|USE_RTLD_GLOBAL|CUDA_SANITIZER)|PYTORCH_JIT"
    ),
    "torch._dynamo.config": re.compile("TORCHDYNAMO_.*|TORCH_COMPILE_.*"),
}
"""Variables that a module has read when it was imported, and that nothing public can change any more."""


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


def without_effect(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of variables that were changed too late for what is imported."""
    changed = [name for name in sorted(now) if before.get(name) != now[name]]
    patterns = [pattern for module, pattern in _TOO_LATE.items() if module in sys.modules]
    return [name for name in changed if any(pattern.fullmatch(name) for pattern in patterns)]


class TorchVariables:
    """What the script changes in the environment before it imports torch.

    Args:
        script: its name, for the user.
        share: this worker's share of the cores.
        nproc: processes on this machine.
        tells: whether this process tells the user what has no effect.
    """

    def __init__(self, script: str, share: int, nproc: int, *, tells: bool) -> None:
        self._script = script
        self._share = share
        self._nproc = nproc
        self._tells = tells
        self._before = dict(os.environ)

    def apply(self) -> None:
        """Called as the script imports torch for the first time."""
        now = dict(os.environ)
        if now == self._before:
            return
        apply_to_torch(now, self._share, self._nproc)
        if (names := without_effect(self._before, now)) and self._tells:
            settings = " ".join(f"{name}={shlex.quote(now[name])}" for name in names)
            say(
                f"WARNING: {self._script} sets {', '.join(names)} before it imports torch, but lockstep run has imported that "
                f"already, so it has no effect. Set it in the shell: {settings} lockstep run ..."
            )
