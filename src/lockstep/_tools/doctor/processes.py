"""The check of the exchange of gradients between processes of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep._base.errors import LaunchError, LockstepError
from lockstep._launch import gpus
from lockstep._launch.function import launch
from lockstep._tools.doctor.finding import Check, Finding, Situation, fail, ok, warn

NAME = "exchange"
GROUP_TIMEOUT_S = 20.0
_SETTINGS = ("backend", "device")
_SLOW_BYTES_S, _SLOW_BYTES_S_ON_GPUS = 100e6, 1e9
_SLOW_S, _SLOW_S_ON_GPUS = 0.01, 0.002


def look(situation: Situation) -> dict[str, Any]:
    """Start processes that measure. (They import torch; this process does not.)"""
    config = situation.config
    settings = {name: getattr(config, name) for name in _SETTINGS if getattr(config, name) != "auto"}
    try:
        num_gpus = 0 if config.device == "cpu" else gpus.num_gpus(situation.environ)
        if 0 < num_gpus < situation.num_processes and config.backend == "auto":
            # over which processes share a GPU, as the two of this check may have to
            settings["backend"] = "gloo"
        return {"num_gpus": num_gpus, **launch(_measure, nproc=situation.num_processes, **settings)[0]}
    except LockstepError as error:
        return {"error": error.summary if isinstance(error, LaunchError) else str(error).partition("\n")[0] or "no message"}


def judge(*, error: str = "", num_gpus: int = 0, torch_gpus: int = 0, **measured: Any) -> Finding:
    """Whether processes communicate, and at a normal speed.

    Args:
        error: why nothing could be measured; empty: nothing failed.
        num_gpus: to use, according to the driver.
        torch_gpus: that PyTorch sees in the processes.
        measured: see ``exchange.measure``.
    """
    if error:
        return fail(
            f"processes cannot communicate: {error}",
            "see the message for the cause, or try --backend gloo",
            code="cannot-communicate",
        )
    if num_gpus and not torch_gpus:
        return fail(
            f"the driver reports {num_gpus} GPU(s), but PyTorch sees none in the processes: training runs on the CPU",
            "python -c 'import torch; torch.cuda.init()' shows the cause; or use --device cpu",
            code="gpus-unseen",
        )
    return judge_speed(**measured)


def judge_speed(
    *, backend: str, interface: str, world_size: int, latency_s: float, bandwidth_bytes_s: float, **_: Any
) -> Finding:
    """Whether latency and bandwidth are normal. ``bandwidth_bytes_s``: a tensor's size by the time
    of its exchange."""
    speed = f"{bandwidth_bytes_s / 1e6:,.3g} MB/s" if bandwidth_bytes_s < 1e9 else f"{bandwidth_bytes_s / 1e9:,.3g} GB/s"
    found = f"{1e3 * latency_s:.2f} ms latency, {speed} ({world_size} processes, {backend} on {interface})"
    if bandwidth_bytes_s < (_SLOW_BYTES_S_ON_GPUS if backend == "nccl" else _SLOW_BYTES_S):
        return warn(
            f"{found}: exchanging the gradients of 25 million parameters takes {1e8 / bandwidth_bytes_s:.1f} s per step",
            "use a faster interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), fewer processes per core, or larger "
            "batches and --accumulate, which exchange less often",
            code="slow-bandwidth",
        )
    if latency_s > (_SLOW_S_ON_GPUS if backend == "nccl" else _SLOW_S):
        return warn(
            f"{found}: each exchange waits that long",
            "free some cores (fewer processes or threads), or use a faster network",
            code="slow-latency",
        )
    return ok(found)


def _measure() -> Mapping[str, Any]:
    """Runs in a worker."""
    from lockstep._tools.doctor.exchange import join, measure

    with join(GROUP_TIMEOUT_S) as member:
        return measure(member)


CHECK = Check(NAME, look, judge)
