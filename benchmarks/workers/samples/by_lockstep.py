"""lockstep, as docs/tutorial.md has it: the same command resumes."""

from __future__ import annotations

import argparse
from typing import Any

import task
import torch
from torch.utils.data import DataLoader

import lockstep

SHARDS = 4


def join(args: argparse.Namespace, **settings: Any) -> lockstep.Team:
    """As every task does."""
    return lockstep.join(shards=SHARDS, run_dir=args.directory / "run", progress="off", track="off", **settings)


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """Train, and resume."""
    team = join(args, checkpoint_every=args.save_every)
    model = task.make_model(args.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
    notes.weights(model)


def evaluate(args: argparse.Namespace, notes: task.Notes) -> None:
    """Count samples."""
    team = join(args)
    model = team.prepare(task.make_model())
    with team.evaluate(model, DataLoader(task.Numbered(args.samples), 2)) as evaluation:
        for batch in evaluation:
            for shard in batch.shards:
                notes.evaluated(shard["number"])
                batch.add(loss=task.make_loss(model, shard))


def accumulate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``accumulate=2``, and ``weight=`` for a mean over tokens: docs/how-to/token-weights.md."""
    team = join(args, accumulate=2)
    data, batch_size = task.ACCUMULATED[args.model]
    model = task.make_model(args.model)
    optimizer, loader = task.NotedSGD(model, notes), DataLoader(data(), batch_size * team.world_size)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for _ in team.epochs(1):
        for batch in loader:
            for shard in batch.shards:
                weight = (shard["labels"] != -100).sum() if "labels" in shard else None
                team.backward(task.make_loss(model, shard), weight=weight)
            optimizer.step()
            optimizer.zero_grad()


def stream(args: argparse.Namespace, notes: task.Notes) -> None:
    """Any stream, read as on one process."""
    team = join(args)
    model = task.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(task.Files(), args.global_batch))
    for epoch in team.epochs(1):
        for batch in loader:
            for shard in batch.shards:
                notes.trained(team.step, epoch, shard["number"])
                team.backward(task.make_loss(model, shard))
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    task.run({"train": train, "evaluate": evaluate, "accumulate": accumulate, "stream": stream})
