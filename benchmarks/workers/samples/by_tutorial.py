"""torchrun and DistributedDataParallel, by docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html."""

from __future__ import annotations

import argparse

import task
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """As multigpu_torchrun.py: a snapshot at the end of an epoch."""
    dist.init_process_group("gloo")
    model = task.make_model()
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
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
    dist.destroy_process_group()


if __name__ == "__main__":
    task.run({"train": train})
