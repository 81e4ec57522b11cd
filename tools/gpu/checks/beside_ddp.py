"""Trains a GPT of 156 million parameters with ``exact`` and with ``ddp``, and reports the time of a
step and the memory of each GPU. Then times the exchange of gradients next to an all-reduce.

Memory is what the driver counts, so that it contains NCCL's buffers, which PyTorch's allocator does
not know. ``exact`` uses deterministic kernels, and ``ddp`` does not.
"""

from __future__ import annotations

import functools
import itertools
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep
from gpu.checks.models import Task, large_gpt
from gpu.checks.verdict import add_num_devices, begin, finish, make_parser, settle
from lockstep._base.errors import LaunchError
from lockstep._tools.doctor.exchange import GradientExchange, join, seconds_of, slowest
from lockstep._world.environment import read_environment

STEPS = {False: 14, True: 4}
SIZES = {False: (25_000_000, 400_000_000), True: (25_000, 400_000)}
"""Bytes that are exchanged, by whether the check is tiny."""
ROUNDS = 5
VISIBLE = "CUDA_VISIBLE_DEVICES"


def used(device: torch.device) -> dict[str, float]:
    """GB of memory of the device that are in use, according to the driver, and those of them that
    PyTorch's allocator has."""
    if device.type != "cuda":
        return {"driver": 0.0, "of PyTorch": 0.0}
    settle(device)
    free, total = torch.cuda.mem_get_info(device)
    return {"driver": (total - free) / 1e9, "of PyTorch": torch.cuda.memory_reserved(device) / 1e9}


def steps(num_samples: int, *, tiny: bool) -> dict[str, Any]:
    """A rank's script: seconds of the steps, and memory around the first."""
    with lockstep.join() as team:
        made: Task = large_gpt(STEPS[tiny] + 1, num_samples, tiny=tiny)
        optimizer = torch.optim.SGD(made.model.parameters(), lr=0.001, momentum=0.9)
        model, optimizer, loader = team.prepare(made.model, optimizer, made.batches)
        began_s: list[float] = []
        memory = {}
        for batch in loader:
            memory[f"before step {len(began_s) + 1}"] = used(team.device)
            began_s.append(time.perf_counter())
            for texts in batch.shards:
                team.backward(made.loss(model, texts))
            optimizer.step()
            optimizer.zero_grad()
    last = list(memory)[-1]
    times_s = [after - before for before, after in itertools.pairwise(began_s[3:])]
    return {
        "seconds a step, median": statistics.median(times_s),
        "seconds of the first step": began_s[1] - began_s[0],
        "GB": {name: memory[name] for name in ("before step 1", "before step 2", last)},
    }


def speeds(sizes: tuple[int, ...], *, sees_one: bool) -> dict[str, Any]:
    """A rank's script: for every size, how fast the exchange is, and an all-reduce.

    Args:
        sizes: in bytes.
        sees_one: whether this process is to see its own GPU alone, as some schedulers do it.
    """
    if sees_one:
        local_rank = read_environment().world.local_rank
        visible = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = visible.split(",")[local_rank] if visible else str(local_rank)
    found: dict[str, Any] = {}
    with join(60.0) as member:
        exchange, size = GradientExchange(member), member.collectives.size
        for num_bytes in sizes:
            tensor = exchange.make(num_bytes)
            for name, run in (("exchange", exchange), ("all-reduce", dist.all_reduce)):
                seconds_of(run, tensor)
                host_s: list[float] = []
                timed = functools.partial(_timed, run, host_s)
                took_s = slowest(min(seconds_of(timed, tensor) for _ in range(ROUNDS)))
                found[f"{name}, {num_bytes / 1e6:g} MB"] = {
                    "seconds": took_s,
                    "GB/s sent by a rank": 2 * tensor.nbytes * (size - 1) / size / took_s / 1e9,
                    "seconds of the host": min(host_s),
                }
    return found


def _timed(run: Any, host_s: list[float], tensor: Tensor) -> None:
    began_s = time.perf_counter()
    run(tensor)
    host_s.append(time.perf_counter() - began_s)


def main() -> None:
    args = begin(add_num_devices(make_parser(__doc__)))
    nproc = args.num_devices
    settings = {"device": args.device, "threads": 1, "progress": "off", "checkpoint_every": "off", "timeout_s": 60.0}
    found: dict[str, Any] = {}
    script = functools.partial(steps, nproc if args.tiny else 8 * nproc, tiny=args.tiny)
    for strategy in ("ddp", "exact"):
        found[strategy] = lockstep.launch(script, nproc=nproc, shards=nproc, strategy=strategy, **settings)[0]
        print(strategy, found[strategy], flush=True)
    for sees_one in (False, True):
        name = "processes that see one GPU each" if sees_one else "exchange"
        measure = functools.partial(speeds, SIZES[args.tiny], sees_one=sees_one)
        try:
            found[name] = lockstep.launch(measure, nproc=nproc, device=args.device)[0]
        except LaunchError as error:
            if not sees_one:
                raise
            found[name] = {"error": str(error)[:2000]}  # an answer, too: the stages after this one do not need it
        print(name, found[name], flush=True)
    finish(args, found, [])


if __name__ == "__main__":
    main()
