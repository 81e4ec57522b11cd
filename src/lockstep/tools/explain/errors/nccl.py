"""Errors of NCCL and CUDA, for which PyTorch reports a code; details, if any, are in NCCL's last line."""

from __future__ import annotations

import re

from lockstep.tools.explain.errors.processes import shared_memory
from lockstep.tools.explain.errors.row import row
from lockstep.tools.explain.errors.scene import Scene

_LAST = re.compile(r"Last error:\s*\n?([^\n]+)")
_DEBUG = "Set NCCL_DEBUG=WARN (or INFO) and run again: NCCL then says in the output of each rank what failed where."
_OTHER_RANK = (
    "A connection between two ranks broke: the process of another rank has ended, or the network did. Look at the other ranks' "
    "errors first; the earliest is the cause. If no other rank failed, the network did: see the hosts' logs, and "
    "NCCL_SOCKET_IFNAME if the machines have several networks."
)

_BY_LAST_LINE = (
    (
        r"Duplicate GPU detected ?: rank (\d+) and rank (\d+) both on CUDA device (\S+)",
        "Ranks {0} and {1} use the same GPU (at PCI address {2}), which NCCL refuses. Each rank needs its own: "
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group and before anything is put on a GPU; "
        "and no more ranks on a machine than it has GPUs.",
    ),
    (
        r"shared memory segment (/dev/shm/\S+) \(size (\d+)\)|failed to extend (/dev/shm/\S+)",
        "NCCL could not make the file in /dev/shm by which ranks of one machine talk. {shm} Give it more (docker run "
        "--shm-size=8g, or --ipc=host), or remove what was left there: /dev/shm/nccl-* and torch_* of runs that have ended.",
    ),
    (
        r"[Cc]uda failure (?:\d+ )?'?out of memory",
        "A GPU has no memory left for NCCL's own buffers. Use less of it: a smaller batch.",
    ),
    (
        r"no socket interface found|[Nn]o usable listening interface",
        "NCCL found no network by which to reach the other ranks. NCCL_SOCKET_IFNAME names one that does not exist here, or "
        "none is up: `ip addr` lists them.",
    ),
    (
        r"[Cc]onnect(?:ion)? (?:closed|refused|reset|timed out)|remote peer|[Bb]roken pipe|recv from|completion from peer",
        _OTHER_RANK,
    ),
)

_BY_CODE = {
    ("ncclRemoteError", "remote process exited"): _OTHER_RANK,
    ("ncclSystemError", "unhandled system error"): (
        "A call to the operating system failed inside NCCL: mostly the network between the ranks (another rank has ended, a "
        f"firewall, a wrong NCCL_SOCKET_IFNAME), or a /dev/shm that is full. {_DEBUG}"
    ),
    ("ncclUnhandledCudaError", "unhandled cuda error"): (
        "A CUDA call failed inside NCCL: an earlier kernel of this process crashed (its error comes first in the output), the "
        "GPU is out of memory or in use exclusively by another process, or the driver is too old for this NCCL. "
        f"Check the GPU (nvidia-smi), then run with CUDA_LAUNCH_BLOCKING=1. {_DEBUG}"
    ),
    ("ncclInternalError", "internal error"): (
        "NCCL failed without naming a reason; up to NCCL 2.18 that includes broken connections: look at the other ranks' "
        f"errors first. {_DEBUG}"
    ),
    ("ncclInvalidUsage", "invalid usage"): (
        "NCCL was used in a way that it does not allow: mostly two ranks on one GPU, or ranks that called different "
        f"collectives, or with tensors of different sizes or devices. {_DEBUG}"
    ),
    ("ncclInvalidArgument", "invalid argument"): (
        "NCCL was given a value that it does not take: a type that it cannot add up, an empty group, a rank that does not "
        f"exist, or sizes that differ between ranks. {_DEBUG}"
    ),
}
"""By NCCL's name for the error, and PyTorch's words for it."""


def _of_nccl(match: re.Match[str], scene: Scene) -> str:
    last = _LAST.search(scene.text)
    if last is not None:
        for pattern, words in _BY_LAST_LINE:
            if hit := re.search(pattern, last[1]):
                return words.format(*hit.groups(), shm=shared_memory() if "{shm}" in words else "")
    known = (words for names, words in _BY_CODE.items() if any(name in scene.text for name in names))
    return next(known, f"A collective failed inside NCCL. {_DEBUG}")


def _timed_out(match: re.Match[str], scene: Scene) -> str:
    waited_s, limit_s = int(match["ran"]) / 1000, int(match["limit"]) / 1000
    return (
        f"Rank {match['rank']} waited {waited_s:.0f} s in {match['kind'].strip('_').lower()} number {match['number']} for "
        f"the other ranks; the limit is {limit_s:.0f} s. One of them did not arrive: it failed, hangs, is much slower, or "
        "called another collective. Look at the rank whose error is the earliest, or which is silent. `lockstep stacks` and "
        "the report on a run that is stuck say where it is; a rank that is only slow needs a longer timeout "
        "(init_process_group(timeout=))."
    )


def _no_such_device(match: re.Match[str], scene: Scene) -> str:
    asked = scene.find("set_device", "device")
    which = f"GPU {asked}" if isinstance(asked, int) else "a GPU"
    try:
        seen = scene.torch.cuda.device_count()
    except Exception:  # a CUDA that has failed may fail again
        seen = None
    have = f"sees {seen} (numbered from 0)" if isinstance(seen, int) else "does not have it"
    return (
        f"This process asked for {which}, and {have}. There are more ranks on this machine than GPUs, CUDA_VISIBLE_DEVICES "
        "hides some, or the number is the rank in the whole job: it must be LOCAL_RANK, and 0 where each rank sees one GPU "
        "only."
    )


_CUDA = ("RuntimeError", "AcceleratorError", "AssertionError")

ROWS = (
    row(
        "NCCL timeouts",
        r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), "
        r"OpType=(?P<kind>\w+),.*?Timeout\(ms\)=(?P<limit>\d+)\) ran for (?P<ran>\d+) milliseconds",
        _timed_out,
    ),
    row("NCCL", r"NCCL error|NCCL Error \d", _of_nccl),
    row(
        "CUDA: device-side assert",
        r"CUDA error: device-side assert triggered",
        "A kernel on the GPU has found an invalid value: nearly always an index out of range, that is a label that is not "
        "in 0 ... classes - 1, or a token beyond an embedding's rows. The GPU runs asynchronously, so the line in "
        "the traceback is not the one that launched the kernel, and this process can no longer use the GPU. Run with "
        "CUDA_LAUNCH_BLOCKING=1, or on the CPU, and the traceback names the line.",
        _CUDA,
    ),
    row("CUDA: no such device", r"CUDA error: invalid device ordinal", _no_such_device, _CUDA),
)
