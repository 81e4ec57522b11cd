"""transformers' Trainer, by huggingface.co/docs/transformers/trainer."""

from __future__ import annotations

import argparse
from typing import Any

import task
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    """Returns its loss, as models of transformers do, and notes what it is shown."""

    def __init__(self, args: argparse.Namespace, notes: task.Notes) -> None:
        super().__init__()
        self.model = task.make_model()
        self.trainer: Any = None
        self._args, self._notes = args, notes

    def forward(self, number: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            state = self.trainer.state
            task.die_before(state.global_step + 1, self._args.stop)
            steps = -(-self._args.samples // self._args.global_batch)
            self._notes.trained(state.global_step + 1, state.global_step // steps, number)
        return {"loss": task.make_loss(self.model, {"x": x, "y": y}), "number": number}


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """``save_steps=...`` and ``train(resume_from_checkpoint=True)``."""
    batch_size = args.global_batch // task.world_size()
    arguments = TrainingArguments(
        str(args.directory / "checkpoints"),
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        num_train_epochs=args.epochs,
        dataloader_num_workers=args.workers,
        save_steps=args.save_every,
        eval_strategy="epoch",
        use_cpu=True,
        report_to="none",
    )
    model = Model(args, notes)
    trainer = Trainer(model, arguments, train_dataset=task.Numbered(args.samples), eval_dataset=task.Numbered(24))
    model.__dict__["trainer"] = trainer
    trainer.compute_metrics = lambda prediction: notes.evaluated(prediction.predictions.tolist()) or {}
    trainer.train(resume_from_checkpoint=bool(args.launch))


if __name__ == "__main__":
    task.run({"train": train})
