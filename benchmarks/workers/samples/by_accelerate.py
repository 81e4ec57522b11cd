"""accelerate, by huggingface.co/docs/accelerate/usage_guides/checkpoint and its
examples/by_feature."""

from __future__ import annotations

import argparse
import contextlib

import task
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """As examples/by_feature/checkpointing.py."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=args.remedy))
    set_seed(42)
    model = task.make_model(args.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch_size = args.global_batch // accelerator.num_processes
    loader = DataLoader(task.Numbered(args.samples), batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(task.Numbered(24), batch_size)
    model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)
    overall_step, starting_epoch, resume_step = 0, 0, None
    if args.launch:
        newest = max(args.directory.glob("step_*"), key=lambda path: path.stat().st_ctime)
        accelerator.load_state(newest)
        overall_step = int(newest.name.removeprefix("step_"))
        starting_epoch, resume_step = divmod(overall_step, len(loader))
    for epoch in range(starting_epoch, args.epochs):
        model.train()
        is_resumed = epoch == starting_epoch and resume_step is not None
        for batch in accelerator.skip_first_batches(loader, resume_step) if is_resumed else loader:
            task.die_before(overall_step + 1, args.stop)
            notes.trained(overall_step + 1, epoch, batch["number"])
            accelerator.backward(task.make_loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            overall_step += 1
            if overall_step % args.save_every == 0:
                accelerator.save_state(args.directory / f"step_{overall_step}")
        model.eval()
        for batch in test_loader:
            with torch.no_grad():
                task.make_loss(model, batch)
            numbers = accelerator.gather_for_metrics(batch["number"])
            notes.evaluated(numbers if accelerator.is_main_process else ())
    notes.weights(accelerator.unwrap_model(model))


def evaluate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``gather_for_metrics``."""
    accelerator = Accelerator(cpu=True)
    for batch in accelerator.prepare(DataLoader(task.Numbered(args.samples), 2)):
        numbers = accelerator.gather_for_metrics(batch["number"])
        notes.evaluated(numbers if accelerator.is_main_process else ())


def accumulate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``accumulate(model)``, from its guide on gradient accumulation. The remedy is its section on
    samples of variable size."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    data, batch_size = task.ACCUMULATED[args.model]
    model = task.make_model(args.model)
    model, optimizer, loader = accelerator.prepare(model, task.NotedSGD(model, notes), DataLoader(data(), batch_size))
    if args.remedy:
        batches = list(loader)
        labels = [(batch["labels"] != -100).sum() for batch in batches]
        total = accelerator.gather(sum(labels)).sum()
        for batch, num_labels in zip(batches, labels, strict=True):
            with model.no_sync() if batch is not batches[-1] else contextlib.nullcontext():
                loss = task.make_loss(model, batch) * num_labels  # the sum
                accelerator.backward(loss * 2 * accelerator.num_processes / total)
        optimizer.step()
        return
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(task.make_loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()


def stream(args: argparse.Namespace, notes: task.Notes) -> None:
    """A stream that rank 0 reads for all, by default."""
    accelerator = Accelerator(cpu=True)
    model = task.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch_size = args.global_batch // accelerator.num_processes
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(task.Files(), batch_size))
    for step, batch in enumerate(loader, start=1):
        notes.trained(step, 0, batch["number"])
        accelerator.backward(task.make_loss(model, batch))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    task.run({"train": train, "evaluate": evaluate, "accumulate": accumulate, "stream": stream})
