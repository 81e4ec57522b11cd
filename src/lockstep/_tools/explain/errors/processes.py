"""Processes that have ended: loader workers, other ranks."""

from __future__ import annotations

import os
import re
import signal

from lockstep._tools.explain.errors.row import row
from lockstep._tools.explain.errors.scene import Scene
from lockstep._world.machine.sizes import size

_SHM = "/dev/shm"
"""Through which loader workers pass data."""


_ENDS = {
    "Bus error": (
        "by SIGBUS: mostly it wrote a batch into shared memory when none was left. {shm} Give it more (docker run "
        "--shm-size=8g, or --ipc=host), use fewer or smaller batches ahead (num_workers, prefetch_factor, batch_size), or "
        "torch.multiprocessing.set_sharing_strategy('file_system'), which needs it less"
    ),
    "Killed": (
        "by SIGKILL: nearly always the system's out-of-memory killer (`dmesg` says so, or the scheduler's log). Each worker "
        "has its own copy of what the data set holds in Python objects: use fewer workers, NumPy arrays or memory-mapped "
        "files in place of lists, or ask for more memory"
    ),
    "Segmentation fault": (
        "by SIGSEGV: a crash in native code that the data set uses. Try num_workers=0 with `python -X faulthandler` to see "
        "where; libraries that use threads or GPUs may not survive the fork: multiprocessing_context='spawn'"
    ),
}


def _worker_gone(match: re.Match[str], scene: Scene) -> str:
    """PyTorch names the signal in the error or its cause; if the worker died early it does not, and
    the process is asked."""
    texts = [scene.text, *(str(error) for error in (scene.error.__cause__, scene.error.__context__) if error is not None)]
    named = [hit[1] for text in texts if (hit := re.search(r"killed by signal: ([^.]+)", text))]
    codes = [int(hit[1]) for text in texts if (hit := re.search(r"with exit code (\d+)", text))]
    workers = scene.find("_try_get_data", "failed_workers")
    code = codes[0] if codes else workers[0].exitcode if workers else None
    if named or (code is not None and code < 0):
        name = named[0] if named else signal.strsignal(-(code or 0)) or ""
        how = _ENDS.get(name, f"by a signal ({name})")
    else:
        how = (
            f"{'without a word' if code is None else f'with status {code}'}: sys.exit() or os._exit() in what the data set or "
            "collate_fn calls, which should raise an error instead; or an error as it started, whose traceback stands above "
            '(spawn and forkserver import the script again: call the training under `if __name__ == "__main__":`)'
        )
    return (
        f"Loader worker {match['pid']} of this rank ended {how.format(shm=shared_memory() if '{shm}' in how else '')}. Its "
        "batch is lost, and with it the loader."
    )


ROWS = (
    row(
        "loader workers",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) (?:is killed by signal|exited unexpectedly)",
        _worker_gone,
    ),
    row(
        "another rank is gone",
        r"gloo/transport.*Connection (?:closed|reset) by peer|Connection closed by peer \[|Connection closed by remote peer",
        "The process of another rank has ended, or left the group, while this one waited for it: this error is an echo. The "
        "other rank's own error is the cause: look for it on every host. If no other rank failed, a connection broke: see the "
        "network, and whether somebody else reaches the ports of this run (SECURITY.md).",
    ),
)


def shared_memory() -> str:
    """One sentence about the present; what filled it may be gone."""
    try:
        filesystem = os.statvfs(_SHM)
    except OSError:
        return f"This machine has no {_SHM}."
    free, total = filesystem.f_bavail * filesystem.f_frsize, filesystem.f_blocks * filesystem.f_frsize
    return f"{_SHM} has {size(total)}, of which {size(free)} are free now."
