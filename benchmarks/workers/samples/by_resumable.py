"""lockstep.resumable with DDP, by docs/how-to/resumable-loader.md."""

from __future__ import annotations

import argparse

import by_tutorial
import task
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import lockstep


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """As the page's script: rank 0 saves the loader's state with the weights."""
    dist.init_process_group("gloo")
    data, test_data = task.Numbered(args.samples), task.Numbered(24)
    loader = lockstep.resumable(DataLoader(data, args.global_batch, shuffle=True, num_workers=args.workers))
    batch_size = args.global_batch // dist.get_world_size()
    test_loader = DataLoader(test_data, batch_size, sampler=DistributedSampler(test_data, shuffle=False))
    model = DistributedDataParallel(task.make_model(args.model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path, step = args.directory / "snapshot.pt", 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.module.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
    for epoch in range(loader.epoch, args.epochs):
        for batch in loader:
            task.die_before(step + 1, args.stop)
            if loader.weight:  # else it adds nothing to the gradient
                notes.trained(step + 1, epoch, batch["number"])
            optimizer.zero_grad()
            (task.make_loss(model, batch) * loader.weight).backward()
            optimizer.step()
            step += 1
            if step % args.save_every == 0 and dist.get_rank() == 0:
                state = {"model": model.module.state_dict(), "loader": loader.state_dict(), "step": step}
                torch.save(state, path.with_suffix(".new"))
                path.with_suffix(".new").replace(path)
        for batch in test_loader:
            with torch.no_grad():
                task.make_loss(model.module, batch)
            notes.evaluated(batch["number"])
    notes.weights(model)
    dist.destroy_process_group()


def evaluate(args: argparse.Namespace, notes: task.Notes) -> None:
    """Each rank counts the samples with a weight; sums are reduced at the end."""
    dist.init_process_group("gloo")
    loader = lockstep.resumable(DataLoader(task.Numbered(args.samples), 2 * dist.get_world_size()))
    for batch in loader:
        if loader.weight:
            notes.evaluated(batch["number"])
    dist.destroy_process_group()


def stream(args: argparse.Namespace, notes: task.Notes) -> None:
    """A stream of all files on every rank."""
    dist.init_process_group("gloo")
    loader = lockstep.resumable(DataLoader(task.Files(), args.global_batch))
    model = DistributedDataParallel(task.make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(loader, start=1):
        if loader.weight:
            notes.trained(step, 0, batch["number"])
        optimizer.zero_grad()
        (task.make_loss(model, batch) * loader.weight).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    task.run({"train": train, "evaluate": evaluate, "stream": stream, "accumulate": by_tutorial.accumulate})
