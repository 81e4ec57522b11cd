"""One process of ``shards.py``: several contenders, which take turns in it.

    python benchmarks/workers/sharded.py CONTENDERS --model MODEL --shards V --samples N --steps N
    --to FILE --run-dir DIR

A turn is a pass of ``steps`` steps of each contender, in an order drawn anew. The processor time of
each step, in nanoseconds, is added to FILE, a line of JSON per turn. With one process it is the
time of the thread that trains; with several also that of the threads that send.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shard_loops
import torch
from shard_models import make_data, make_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from turns import take_turns

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
WHOLE, PARTS, OURS = "whole batches", "by hand", "lockstep"
Pass = Callable[[Callable[[], None]], None]
processor_ns = time.thread_time_ns if WORLD_SIZE == 1 else time.process_time_ns


def with_lockstep(args: argparse.Namespace) -> Pass:
    import lockstep

    team = lockstep.join(threads=1, progress="off", run_dir=args.run_dir, shards=args.shards)
    data = make_data(args.model, args.steps * args.shards * args.samples)
    loader = DataLoader(data, args.shards * args.samples, shuffle=True)
    model, optimizer, loader = team.prepare(*make_model(args.model), loader)
    epochs = team.epochs(1_000_000)
    next(epochs)

    def one_pass(end: Callable[[], None]) -> None:
        shard_loops.shards(team, model, optimizer, loader, end)
        next(epochs)

    return one_pass


def plain(args: argparse.Namespace, in_parts: bool) -> Pass:
    data = make_data(args.model, args.steps * args.shards * args.samples)
    sampler: DistributedSampler[Any] | None = DistributedSampler(data) if WORLD_SIZE > 1 else None
    batch = args.shards * args.samples // WORLD_SIZE
    loader = DataLoader(data, batch, shuffle=sampler is None, sampler=sampler)
    model: Any
    model, optimizer = make_model(args.model)
    if WORLD_SIZE > 1:
        model = DistributedDataParallel(model)
    if not in_parts:
        return lambda end: shard_loops.whole_batches(model, optimizer, loader, end)
    parts = args.shards // WORLD_SIZE
    loop = shard_loops.micro_batches if WORLD_SIZE == 1 else shard_loops.micro_batches_of_ddp
    return lambda end: loop(model, optimizer, loader, parts, end)


def step_times(one_pass: Pass) -> list[int]:
    """Of a pass. The first step has the beginning of the pass too."""
    moments = [processor_ns()]
    one_pass(lambda: moments.append(processor_ns()))
    return [after - before for before, after in itertools.pairwise(moments)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", help=f"of {WHOLE}, {PARTS}, {OURS}, with commas")
    parser.add_argument("--model", required=True)
    parser.add_argument("--shards", type=int, required=True, help="of a global batch")
    parser.add_argument("--samples", type=int, required=True, help="of a shard")
    parser.add_argument("--steps", type=int, required=True, help="of a turn")
    parser.add_argument("--warm-up", type=int, required=True, help="turns before the first")
    parser.add_argument("--to", type=Path, required=True, help="where times go; each rank adds its number")
    parser.add_argument("--run-dir", required=True, help="where lockstep keeps its run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    contenders = args.contenders.split(",")
    # lockstep first: with several processes it makes the group, in which the others train, too
    passes = {OURS: with_lockstep(args)} if OURS in contenders else {}
    passes |= {name: plain(args, name == PARTS) for name in contenders if name != OURS}
    order, draws = list(passes), random.Random(0)

    def turn() -> None:
        draws.shuffle(order)
        times = {name: step_times(passes[name]) for name in order}
        with args.to.with_suffix(f".{RANK}").open("a") as file:
            file.write(json.dumps(times) + "\n")

    take_turns(turn, args.warm_up)


if __name__ == "__main__":
    main()
