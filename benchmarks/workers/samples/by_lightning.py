"""Lightning's Trainer, by its guide on checkpoints:
lightning.ai/docs/pytorch/stable/common/checkpointing.html."""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning
import task
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    """A model that notes what it is shown."""

    def __init__(self, args: argparse.Namespace, notes: task.Notes) -> None:
        super().__init__()
        self.model = task.make_model(args.model)
        self._args, self._notes = args, notes

    def training_step(self, batch: task.Sample) -> torch.Tensor:
        task.die_before(self.global_step + 1, self._args.stop)
        self._notes.trained(self.global_step + 1, self.current_epoch, batch.get("number", ()))
        return task.make_loss(self.model, batch)

    def validation_step(self, batch: task.Sample) -> None:
        self._notes.evaluated(batch["number"])
        task.make_loss(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self._args.task == "accumulate":
            return task.NotedSGD(self.model, self._notes)
        return torch.optim.SGD(self.parameters(), lr=0.1)


def stateful_loader() -> type[DataLoader[task.Sample]]:
    """torchdata's, which replaces PyTorch's samplers by its own as soon as it is imported."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader


def make_trainer(args: argparse.Namespace, **options: Any) -> lightning.Trainer:
    """On this script's processes."""
    return lightning.Trainer(
        accelerator="cpu",
        devices=task.world_size(),
        default_root_dir=args.directory,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """``ModelCheckpoint(every_n_train_steps=...)`` and ``fit(ckpt_path=...)``."""
    lightning.seed_everything(42)
    batch_size = args.global_batch // task.world_size()
    loader_type = stateful_loader() if args.remedy else DataLoader
    loader = loader_type(task.Numbered(args.samples), batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(task.Numbered(24), batch_size)
    saving = ModelCheckpoint(args.directory / "checkpoints", every_n_train_steps=args.save_every, save_last=True)
    trainer = make_trainer(args, max_epochs=args.epochs, callbacks=[saving], num_sanity_val_steps=0)
    module = Module(args, notes)
    trainer.fit(module, loader, test_loader, ckpt_path="last" if args.launch else None)
    notes.weights(module)


def evaluate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``validate``: what the ranks' metrics are computed from."""
    make_trainer(args).validate(Module(args, notes), DataLoader(task.Numbered(args.samples), 2), verbose=False)


def accumulate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``accumulate_grad_batches=2``."""
    data, batch_size = task.ACCUMULATED[args.model]
    trainer = make_trainer(args, max_epochs=1, accumulate_grad_batches=2, enable_checkpointing=False)
    trainer.fit(Module(args, notes), DataLoader(data(), batch_size))


def stream(args: argparse.Namespace, notes: task.Notes) -> None:
    """A stream of this rank's own files, since it does not change IterableDatasets."""
    rank, batch_size = int(os.environ.get("RANK", "0")), args.global_batch // task.world_size()
    trainer = make_trainer(args, max_epochs=1, enable_checkpointing=False)
    trainer.fit(Module(args, notes), DataLoader(task.Files(rank, task.world_size()), batch_size))


if __name__ == "__main__":
    task.run({"train": train, "evaluate": evaluate, "accumulate": accumulate, "stream": stream})
