"""Errors about processes that exited: loader workers, other ranks."""

from __future__ import annotations

import os
import re
import signal

from lockstep._tools.explain.errors.row import row
from lockstep._tools.explain.errors.scene import Scene
from lockstep._world.machine.sizes import size

_SHM = "/dev/shm"
"""The file system through which loader workers pass batches."""
ENLARGE_SHM = (
    "Enlarge it: docker run --shm-size=8g (or --ipc=host); on Kubernetes, an `emptyDir: {medium: Memory}` volume mounted at "
    "/dev/shm; elsewhere, mount -o remount,size=8g /dev/shm"
)
"""How to enlarge ``/dev/shm``, without a full stop."""
_ENDS = {
    "Bus error": (
        "was killed by SIGBUS, most likely because /dev/shm was full when it wrote a batch. {shm} {enlarge}. Or keep fewer or "
        "smaller batches in flight (num_workers, prefetch_factor, batch_size)"
    ),
    "Killed": (
        "was killed by SIGKILL, nearly always by the kernel's out-of-memory killer (see `dmesg`, or the scheduler's log). Each "
        "worker has a copy of the dataset's Python objects. Use fewer workers, NumPy arrays or memory-mapped files instead of "
        "lists, or request more memory"
    ),
    "Segmentation fault": (
        "crashed (SIGSEGV) in native code that the dataset uses. To see where, run with num_workers=0 and `python -X "
        "faulthandler`. If a library uses threads or GPUs, set multiprocessing_context='spawn'"
    ),
}


def _worker_gone(match: re.Match[str], scene: Scene) -> str:
    """Explains the death of a loader worker. PyTorch names the signal in the error or its cause; if
    the worker died early, it does not, and the process object has the exit code."""
    texts = [scene.text, *(str(error) for error in (scene.error.__cause__, scene.error.__context__) if error is not None)]
    named = [hit[1] for text in texts if (hit := re.search(r"killed by signal: ([^.]+)", text))]
    codes = [int(hit[1]) for text in texts if (hit := re.search(r"with exit code (\d+)", text))]
    workers = scene.find("_try_get_data", "failed_workers")
    code = codes[0] if codes else workers[0].exitcode if workers else None
    if named or (code is not None and code < 0):
        name = named[0] if named else signal.strsignal(-(code or 0)) or ""
        how = _ENDS.get(name, f"was killed by a signal ({name})")
    else:
        how = (
            f"exited {'silently' if code is None else f'with status {code}'}. Either the dataset or collate_fn called "
            "sys.exit() or os._exit(): raise an error instead. Or the worker failed at its start (see the traceback above): "
            'with spawn and forkserver, start the training under `if __name__ == "__main__":`'
        )
    if "{shm}" in how:
        how = how.replace("{shm}", shared_memory()).replace("{enlarge}", ENLARGE_SHM)
    return f"Loader worker {match['pid']} of this rank {how}."


ROWS = (
    row(
        "loader workers",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) (?:is killed by signal|exited unexpectedly)",
        _worker_gone,
    ),
    row(
        "another rank exited",
        r"gloo/transport.*Connection (?:closed|reset) by peer|Connection closed by peer \[|Connection closed by remote peer",
        "Another rank exited, or left the process group, while this one waited for it. This error is a consequence: look for "
        "the other rank's error, on every machine. If no other rank failed, a connection broke: check the network, and whether "
        "another program can reach the ports of this run (SECURITY.md).",
    ),
)


def shared_memory() -> str:
    """The size of ``/dev/shm`` and what is free now, as a sentence. What filled it may have been
    freed since."""
    try:
        filesystem = os.statvfs(_SHM)
    except OSError:
        return f"This machine has no {_SHM}."
    free, total = filesystem.f_bavail * filesystem.f_frsize, filesystem.f_blocks * filesystem.f_frsize
    return f"{_SHM} has {size(total)}, of which {size(free)} are free now."
