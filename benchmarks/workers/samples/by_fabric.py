"""Lightning Fabric, by its guides on checkpoints and gradient accumulation: lightning.ai/docs/fabric/stable."""

from __future__ import annotations

import argparse
from typing import Any

import task
import torch
from lightning_fabric import Fabric
from torch.utils.data import DataLoader


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """Its guide saves models, optimizers and counters, and shows no way to skip what an epoch has seen."""
    fabric = Fabric(accelerator="cpu", devices=int(task.world_size()), strategy="ddp" if task.world_size() > 1 else "auto")
    fabric.launch()
    fabric.seed_everything(42)
    model = task.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch_size = args.global_batch // fabric.world_size
    loader = DataLoader(task.Numbered(args.samples), batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(task.Numbered(24), batch_size)
    model, optimizer = fabric.setup(model, optimizer)
    loader, test_loader = fabric.setup_dataloaders(loader, test_loader)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "iteration": 0, "epoch": 0}
    if args.launch:
        fabric.load(args.directory / "checkpoint.ckpt", state)
    for epoch in range(state["epoch"], args.epochs):
        state["epoch"] = epoch
        for batch in loader:
            task.die_before(state["iteration"] + 1, args.stop)
            notes.trained(state["iteration"] + 1, epoch, batch["number"])
            fabric.backward(task.make_loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            state["iteration"] += 1
            if state["iteration"] % args.save_every == 0:
                fabric.save(args.directory / "checkpoint.ckpt", state)
        for batch in test_loader:
            with torch.no_grad():
                task.make_loss(model, batch)
            numbers = fabric.all_gather(batch["number"]).flatten()
            notes.evaluated(numbers if fabric.is_global_zero else ())


if __name__ == "__main__":
    task.run({"train": train})
