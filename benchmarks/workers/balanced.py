"""One process of ``balance.py``: a convolutional network, trained with lockstep on global batches
of V shards.

    python benchmarks/workers/balanced.py --shards V --steps N --balance on|off --dir DIR

Alone it runs all shards; as one of several it has its part. A turn is ``steps`` steps of one long
epoch. After each, rank 0 adds a line to ``DIR/weights.sha256``: the number of steps, and the
SHA-256 of the weights after them."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
from cnn import make_model
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from turns import take_turns

import lockstep

SAMPLES = 16
"""Of a shard."""
_MOST_STEPS = 2000
"""Of all turns together."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--balance", choices=("on", "off"), required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--warm-up", type=int, required=True, help="turns that do not count")
    args = parser.parse_args()
    torch.manual_seed(0)
    # Independent processes must not share a run.
    directory = args.dir if "RANK" in os.environ else args.dir / str(os.getpid())
    team = lockstep.join(
        threads=1,
        progress="off",
        shards=args.shards,
        strategy="exact",
        balance=args.balance,
        checkpoint_every="off",
        device="cpu",
        run_dir=str(directory / "run"),
    )
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(512, 3, 32, 32, generator=generator), torch.randint(0, 10, (512,), generator=generator))
    batch_size = args.shards * SAMPLES
    sampler = RandomSampler(data, replacement=True, num_samples=_MOST_STEPS * batch_size, generator=generator)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, batch_size, sampler=sampler))
    criterion = nn.CrossEntropyLoss()
    next(team.epochs(1))
    batches = iter(loader)

    def train() -> None:
        for _ in range(args.steps):
            for images, labels in next(batches).shards:
                team.backward(criterion(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()

    def note() -> None:
        if team.is_main:
            weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
            with (directory / "weights.sha256").open("a", encoding="utf-8") as file:
                file.write(f"{team.step} {hashlib.sha256(weights).hexdigest()}\n")

    take_turns(train, args.warm_up, after=note)


if __name__ == "__main__":
    main()
