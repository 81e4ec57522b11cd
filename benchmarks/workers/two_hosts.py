"""One process of ``two_hosts.py``: a transformer, trained with lockstep or by hand with
DistributedDataParallel.

    lockstep run --nnodes 2 ... benchmarks/workers/two_hosts.py lockstep --size 5M --steps N
    torchrun --nnodes 2 ... benchmarks/workers/two_hosts.py by-hand --size 5M --steps N

Both have the same model, the same dataset in shuffled order, and 4 sequences of 32 tokens a
process and step. A turn is ``steps`` steps, an epoch.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tree import SEQUENCES, SIZES, TOKENS, WORDS, make_model
from turns import take_turns

WORLD_SIZE = int(os.environ["WORLD_SIZE"])


def make_data(steps: int) -> TensorDataset:
    shape = (steps * WORLD_SIZE * SEQUENCES, TOKENS)
    tokens, targets = torch.randint(WORDS, (2, *shape), generator=torch.Generator().manual_seed(1))
    return TensorDataset(tokens, targets)


def with_lockstep(args: argparse.Namespace) -> Callable[[], None]:
    import lockstep

    team = lockstep.join()
    loader = DataLoader(make_data(args.steps), WORLD_SIZE * SEQUENCES, shuffle=True)
    model, optimizer, loader = team.prepare(*make_model(args.size), loader)
    criterion = nn.CrossEntropyLoss()
    epochs = team.epochs(1_000_000)
    next(epochs)

    def epoch() -> None:
        for batch in loader:
            for tokens, targets in batch.shards:
                loss = criterion(model(tokens), targets)
                team.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        # what `for epoch in team.epochs(...)` does between two passes belongs to the first
        next(epochs)

    return epoch


def by_hand(args: argparse.Namespace) -> Callable[[], None]:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    plain, optimizer = make_model(args.size)
    model = nn.parallel.DistributedDataParallel(plain)
    data = make_data(args.steps)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, SEQUENCES, sampler=sampler)
    criterion = nn.CrossEntropyLoss()
    number = 0

    def epoch() -> None:
        nonlocal number
        sampler.set_epoch(number)
        number += 1
        for tokens, targets in loader:
            loss = criterion(model(tokens), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


CONTENDERS = {"lockstep": with_lockstep, "by-hand": by_hand}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--steps", type=int, required=True, help="steps of an epoch")
    args = parser.parse_args()
    take_turns(CONTENDERS[args.contender](args))


if __name__ == "__main__":
    main()
