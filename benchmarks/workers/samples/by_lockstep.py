"""lockstep, as docs/tutorial.md has it: the same command resumes."""

from __future__ import annotations

import argparse

import task
import torch
from torch.utils.data import DataLoader

import lockstep

SHARDS = 4


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """Train, and resume."""
    team = lockstep.join(
        shards=SHARDS, run_dir=args.directory / "run", checkpoint_every=args.save_every, progress="off", track="off"
    )
    model = task.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(task.Numbered(args.samples), args.global_batch, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(task.Numbered(24), args.global_batch)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            saved = args.directory / "run" / "checkpoints" / f"step-{team.step - 1:08}"
            task.die_before(team.step, args.stop, saved)
            for shard in batch.shards:
                notes.trained(team.step, epoch, shard["number"])
                team.backward(task.make_loss(model, shard))
            optimizer.step()
            optimizer.zero_grad()
        with team.evaluate(model, test_loader) as evaluation:
            for batch in evaluation:
                for shard in batch.shards:
                    notes.evaluated(shard["number"])
                    batch.add(loss=task.make_loss(model, shard))


if __name__ == "__main__":
    task.run({"train": train})
