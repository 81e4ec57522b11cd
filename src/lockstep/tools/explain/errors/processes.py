"""Processes that cannot join a rendezvous, and loader workers that have died."""

from __future__ import annotations

import re
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Any

from lockstep.tools.explain.errors.row import row
from lockstep.tools.explain.errors.scene import Scene
from lockstep.tools.explain.errors.shared_memory import described

_LIMIT_S = 1.0
_LISTENS = "0A"


def _no_group(match: re.Match[str], scene: Scene) -> str:
    called = "DistributedDataParallel(...)" if scene.called == "__init__" else f"{scene.called or 'a collective'}()"
    return (
        f"{called} needs the other ranks, and this process has not joined them: init_process_group() was not called before it, "
        "or destroy_process_group() was. Under lockstep run and torchrun, torch.distributed.init_process_group(backend) needs "
        "no more arguments; lockstep.join() does it by itself. What should also run without a launcher can ask "
        "torch.distributed.is_initialized() first."
    )


def _address_in_use(match: re.Match[str], scene: Scene) -> str:
    port = int(match["port"])
    return (
        f"Rank 0 cannot listen on port {port}, the ranks' rendezvous endpoint: {_holder(port)}. So no rank can start. Mostly "
        "that is another run on this machine with the same MASTER_PORT, or one that was killed and has left a process "
        "behind. Let `lockstep run` or `torchrun --standalone` choose the port, set MASTER_PORT to a free one, or end that "
        "process."
    )


def _holder(port: int) -> str:
    """The process that listens on a port, as far as this user may know."""
    try:
        inodes = {
            fields[9]
            for table in ("tcp", "tcp6")
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]
            if (fields := line.split())[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port
        }
    except OSError:
        inodes = set()
    until_s = time.monotonic() + _LIMIT_S
    for process in Path("/proc").glob("[0-9]*"):
        if not inodes or time.monotonic() > until_s:
            break
        try:
            if any(_inode(link) in inodes for link in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"process {process.name} on {socket.gethostname()} does already ({words[:120]})"
        except OSError:  # another user's, or ended
            continue
    return "another process does already"


def _inode(link: Path) -> str:
    try:
        return str(link.readlink()).removeprefix("socket:[").removesuffix("]")
    except OSError:
        return ""


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


_ERROR_AT_START = (
    ": by an error as it started, if its traceback stands above (spawn and forkserver import the script again, and run what "
    'stands at its top level: move the training into a function, and call it under `if __name__ == "__main__":`), or by '
    "os._exit() in what the data set calls"
)


def _worker_gone(match: re.Match[str], scene: Scene) -> str:
    """PyTorch names the signal in the error or its cause; if the worker died early it does not, and the process is asked."""
    texts = [scene.text, *(str(error) for error in (scene.error.__cause__, scene.error.__context__) if error is not None)]
    matches = [hit for text in texts if (hit := re.search(r"killed by signal: ([^.]+)|with exit code (\d+)", text))]
    number, status = matches[0].groups() if matches else _end_of(scene.find("_try_get_data", "failed_workers"))
    code = int(status or 0) - 256 * (int(status or 0) > 127)  # sys.exit(-1) is status 255
    called = f"sys.exit({code}) or os._exit({code}) in what the data set or collate_fn calls"
    by = f", by {called}, which should raise an error instead"
    ended = f"by a signal ({number})" if number else f"with status {status}{_ERROR_AT_START if status == '1' else by}"
    how = _ENDS.get(number or "", ended if number or status else "without a word")
    return (
        f"Loader worker {match['pid']} of this rank ended {how.format(shm=described() if '{shm}' in how else '')}. Its "
        "batch is lost, and with it the loader."
    )


def _end_of(workers: Any) -> tuple[str | None, str | None]:
    """The name of the signal that ended the first of these processes, or its exit status."""
    code = workers[0].exitcode if workers else None
    if code is None:
        return None, None
    return (signal.strsignal(-code), None) if code < 0 else (None, str(code))


def _too_many_files(match: re.Match[str], scene: Scene) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"This process has reached its limit of {soft} open files. Each loader worker takes some, each connection to "
        "another rank one, and each tensor that a worker hands over one until it is deleted. Raise the limit (ulimit -n "
        f"{hard if hard > soft else 65536}), keep no batches in lists, or call "
        "torch.multiprocessing.set_sharing_strategy('file_system')."
    )


def _no_shared_memory(match: re.Match[str], scene: Scene) -> str:
    return (
        f"A batch did not fit into shared memory. {described()} Give it more (docker run --shm-size=8g, or --ipc=host), or use "
        "fewer or smaller batches ahead (num_workers, prefetch_factor, batch_size)."
    )


ROWS = (
    row(
        "no process group",
        r"Default process group has not been initialized",
        _no_group,
        ("ValueError", "RuntimeError"),
    ),
    row("address in use", r"port: (?P<port>\d+),.*EADDRINUSE", _address_in_use),
    row(
        "loader workers",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) (?:is killed by signal|exited unexpectedly)",
        _worker_gone,
    ),
    row(
        "open files",
        r"received 0 items of ancdata|Too many open files",
        _too_many_files,
        ("RuntimeError", "OSError"),
    ),
    row(
        "shared memory",
        r"unable to (?:write|open|allocate|resize|mmap).*(?:shared memory|/torch_).*(?:No space left|Cannot allocate|\(28\))",
        _no_shared_memory,
    ),
    row(
        "another rank is gone",
        r"gloo/transport.*Connection (?:closed|reset) by peer|Connection closed by peer \[|Connection closed by remote peer",
        "The process of another rank has ended, or left the group, while this one waited for it: this error is an echo. The "
        "other rank's own error is the cause: look for it on every host. If no other rank failed, a connection broke: see the "
        "network, and whether somebody else reaches the ports of this run (SECURITY.md).",
    ),
)
