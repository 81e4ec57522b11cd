"""torchdata's StatefulDataLoader with DDP, by
meta-pytorch.org/data/main/stateful_dataloader_tutorial.html."""

from __future__ import annotations

import argparse

import by_tutorial
import task
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """Each rank saves its loader's state, which "handles state across workers but not across
    ranks"."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = task.make_model(args.model)
    data, test_data = task.Numbered(args.samples), task.Numbered(24)
    batch_size = args.global_batch // dist.get_world_size()
    loader = StatefulDataLoader(data, batch_size, sampler=DistributedSampler(data), num_workers=args.workers)
    test_loader = DataLoader(test_data, batch_size, sampler=DistributedSampler(test_data, shuffle=False))
    first_epoch, step = 0, 0
    if args.launch:
        snapshot = torch.load(args.directory / "snapshot.pt", weights_only=True)
        model.load_state_dict(snapshot["model"])
        first_epoch, step = snapshot["epoch"], snapshot["step"]
        loader.load_state_dict(torch.load(args.directory / f"loader-{rank}.pt", weights_only=False))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(first_epoch, args.epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            task.die_before(step + 1, args.stop)
            notes.trained(step + 1, epoch, batch["number"])
            optimizer.zero_grad()
            task.make_loss(model, batch).backward()
            optimizer.step()
            step += 1
            if step % args.save_every == 0:
                torch.save(loader.state_dict(), args.directory / f"loader-{rank}.pt")
                if rank == 0:
                    state = {"model": model.module.state_dict(), "epoch": epoch, "step": step}
                    torch.save(state, args.directory / "snapshot.pt")
        for batch in test_loader:
            with torch.no_grad():
                task.make_loss(model.module, batch)
            notes.evaluated(batch["number"])
    notes.weights(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    by_tutorial.LOADER = StatefulDataLoader
    others = {name: getattr(by_tutorial, name) for name in ("evaluate", "accumulate", "stream")}
    task.run({"train": train, **others})
