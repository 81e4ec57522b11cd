"""torchrun and DistributedDataParallel, by
docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html."""

from __future__ import annotations

import argparse
import contextlib

import task
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

LOADER: type[DataLoader[task.Sample]] = DataLoader


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """As multigpu_torchrun.py: a snapshot at the end of an epoch."""
    dist.init_process_group("gloo")
    model = task.make_model(args.model)
    data, test_data = task.Numbered(args.samples), task.Numbered(24)
    batch_size = args.global_batch // dist.get_world_size()
    loader = DataLoader(data, batch_size, sampler=DistributedSampler(data), num_workers=args.workers)
    test_loader = DataLoader(test_data, batch_size, sampler=DistributedSampler(test_data, shuffle=False))
    path, epochs_run, step = args.directory / "snapshot.pt", 0, 0
    if path.exists():
        snapshot = torch.load(path, weights_only=True)
        model.load_state_dict(snapshot["MODEL_STATE"])
        epochs_run = snapshot["EPOCHS_RUN"]
        step = epochs_run * len(loader)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs_run, args.epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            task.die_before(step + 1, args.stop)
            notes.trained(step + 1, epoch, batch["number"])
            optimizer.zero_grad()
            task.make_loss(model, batch).backward()
            optimizer.step()
            step += 1
        if dist.get_rank() == 0:
            torch.save({"MODEL_STATE": model.module.state_dict(), "EPOCHS_RUN": epoch + 1}, path)
        for batch in test_loader:
            with torch.no_grad():
                task.make_loss(model.module, batch)
            notes.evaluated(batch["number"])
    notes.weights(model)
    dist.destroy_process_group()


def evaluate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``DistributedSampler(shuffle=False)``, and results gathered from all ranks."""
    dist.init_process_group("gloo")
    data = task.Numbered(args.samples)
    for batch in LOADER(data, 2, sampler=DistributedSampler(data, shuffle=False)):
        numbers = [torch.zeros_like(batch["number"]) for _ in range(dist.get_world_size())]
        dist.all_gather(numbers, batch["number"])
        notes.evaluated(torch.cat(numbers) if dist.get_rank() == 0 else ())
    dist.destroy_process_group()


def accumulate(args: argparse.Namespace, notes: task.Notes) -> None:
    """As "Gradient accumulation" in docs.pytorch.org/docs/stable/notes/amp_examples.html."""
    dist.init_process_group("gloo")
    data, batch_size = task.ACCUMULATED[args.model]
    model = DistributedDataParallel(task.make_model(args.model))
    optimizer, samples = task.NotedSGD(model, notes), data()
    for i, batch in enumerate(LOADER(samples, batch_size, sampler=DistributedSampler(samples, shuffle=False))):
        loss = task.make_loss(model, batch) / 2
        loss.backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


def stream(args: argparse.Namespace, notes: task.Notes) -> None:
    """A stream of this rank's own files."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(task.make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = task.Files(dist.get_rank(), dist.get_world_size())
    with model.join() if args.remedy else contextlib.nullcontext():
        for step, batch in enumerate(LOADER(data, args.global_batch // dist.get_world_size()), start=1):
            notes.trained(step, 0, batch["number"])
            optimizer.zero_grad()
            task.make_loss(model, batch).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    task.run({"train": train, "evaluate": evaluate, "accumulate": accumulate, "stream": stream})
