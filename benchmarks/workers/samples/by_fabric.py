"""Lightning Fabric, by its guides on checkpoints and gradient accumulation:
lightning.ai/docs/fabric/stable."""

from __future__ import annotations

import argparse
from typing import Any

import task
import torch
from lightning_fabric import Fabric
from torch.utils.data import DataLoader


def launch() -> Fabric:
    """On this script's processes."""
    fabric = Fabric(accelerator="cpu", devices=task.world_size(), strategy="ddp" if task.world_size() > 1 else "auto")
    fabric.launch()
    return fabric


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """Its guide saves models, optimizers and counters, and shows no way to skip what an epoch has
    seen."""
    fabric = launch()
    fabric.seed_everything(42)
    model = task.make_model(args.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch_size = args.global_batch // fabric.world_size
    loader = DataLoader(task.Numbered(args.samples), batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(task.Numbered(24), batch_size)
    model, optimizer = fabric.setup(model, optimizer)
    loader, test_loader = fabric.setup_dataloaders(loader, test_loader)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "iteration": 0, "epoch": 0}
    if args.launch:
        fabric.load(args.directory / "checkpoint.ckpt", state)
    for epoch in range(state["epoch"], args.epochs):
        for batch in loader:
            task.die_before(state["iteration"] + 1, args.stop)
            notes.trained(state["iteration"] + 1, epoch, batch["number"])
            fabric.backward(task.make_loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            state["iteration"] += 1
            if state["iteration"] % args.save_every == 0:
                fabric.save(args.directory / "checkpoint.ckpt", state)
        state["epoch"] += 1
        fabric.save(args.directory / "checkpoint.ckpt", state)
        for batch in test_loader:
            with torch.no_grad():
                task.make_loss(model, batch)
            numbers = fabric.all_gather(batch["number"]).flatten()
            notes.evaluated(numbers if fabric.is_global_zero else ())
    notes.weights(model)


def evaluate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``all_gather`` of what the set-up loader deals out."""
    fabric = launch()
    for batch in fabric.setup_dataloaders(DataLoader(task.Numbered(args.samples), 2)):
        numbers = fabric.all_gather(batch["number"]).flatten()
        notes.evaluated(numbers if fabric.is_global_zero else ())


def accumulate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``no_backward_sync``; the loss divided by the number of batches as in PyTorch's own
    guides."""
    fabric = launch()
    data, batch_size = task.ACCUMULATED[args.model]
    model = task.make_model(args.model)
    model, optimizer = fabric.setup(model, task.NotedSGD(model, notes))
    for iteration, batch in enumerate(fabric.setup_dataloaders(DataLoader(data(), batch_size))):
        is_accumulating = (iteration + 1) % 2 != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            fabric.backward(task.make_loss(model, batch) / 2)
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()


def stream(args: argparse.Namespace, notes: task.Notes) -> None:
    """A stream of this rank's own files, since it does not change IterableDatasets."""
    fabric = launch()
    model = task.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    data = task.Files(fabric.global_rank, fabric.world_size)
    loader = fabric.setup_dataloaders(DataLoader(data, args.global_batch // fabric.world_size))
    for step, batch in enumerate(loader, start=1):
        notes.trained(step, 0, batch["number"])
        fabric.backward(task.make_loss(model, batch))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    task.run({"train": train, "evaluate": evaluate, "accumulate": accumulate, "stream": stream})
