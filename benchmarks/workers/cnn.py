"""One process of ``scaling.py``: a convolutional network, trained with lockstep on a global batch.

    python benchmarks/workers/cnn.py --steps N --batch N --run-dir DIR

One process trains on the global batch; several take a part each. A turn is ``steps`` steps,
one epoch."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from turns import take_turns

import lockstep


def make_model() -> nn.Module:
    def stage(channels_in: int, channels_out: int) -> list[nn.Module]:
        convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(channels_out), nn.ReLU()]

    return nn.Sequential(
        *stage(3, 32), *stage(32, 64), nn.MaxPool2d(2), *stage(64, 128), nn.MaxPool2d(2), *stage(128, 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="the global batch")
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    # Independent processes must not share a run, nor race to make its directory.
    run_dir = args.run_dir if "RANK" in os.environ else args.run_dir / str(os.getpid())
    team = lockstep.join(threads=1, progress="off", run_dir=str(run_dir), strategy=args.strategy)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    num_samples = args.steps * args.batch
    data = TensorDataset(torch.randn(num_samples, 3, 32, 32), torch.randint(0, 10, (num_samples,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, args.batch, shuffle=True))
    criterion = nn.CrossEntropyLoss()
    epochs = team.epochs(1_000_000)
    next(epochs)

    def epoch() -> None:
        for batch in loader:
            for images, labels in batch.shards:
                loss = criterion(model(images), labels)
                team.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        next(epochs)

    take_turns(epoch)


if __name__ == "__main__":
    main()
