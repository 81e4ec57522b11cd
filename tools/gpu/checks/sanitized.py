"""Trains briefly with pinned memory, checkpoints and values that are read, under
TORCH_CUDA_SANITIZER=1. That ends the program, with the stacks of both accesses, if two streams use
memory in no defined order."""

from __future__ import annotations

import os

import torch
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from gpu.checks.models import cnn
from gpu.checks.verdict import begin, finish, make_parser


def main() -> None:
    args = begin(make_parser(__doc__))
    steps = 4 if args.tiny else 8
    made = cnn(steps, tiny=True)  # every access is looked at: a large one shows no more
    data = TensorDataset(*(torch.cat(part) for part in zip(*made.batches, strict=True)))
    with lockstep.join(device=args.device, shards=2, progress="off", checkpoint_every=2, log_every=2) as team:
        optimizer = torch.optim.AdamW(made.model.parameters(), lr=0.01)
        samples = DataLoader(data, 8, shuffle=True, pin_memory=team.device.type != "cpu")
        model, optimizer, loader = team.prepare(made.model, optimizer, samples)
        losses = []
        for _ in team.epochs(2):
            for batch in loader:
                for images, labels in batch.shards:
                    loss = made.loss(model, (images, labels))
                    team.backward(loss)
                    batch.add(loss=loss)
                team.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                team.log(loss=batch["loss"])
                losses.append(batch["loss"])
    is_on = os.environ.get("TORCH_CUDA_SANITIZER") == "1"
    simulation = getattr(torch, "sim", None)
    reports = simulation.library.reports() if simulation else []
    finish(args, {"sanitizer": is_on, "losses": losses, "reports of the simulation": reports}, reports)


if __name__ == "__main__":
    main()
