"""transformers' Trainer, by huggingface.co/docs/transformers/trainer."""

from __future__ import annotations

import argparse
from typing import Any

import task
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(nn.Module):
    """Returns its loss, as models of transformers do, and notes what it is shown."""

    def __init__(self, args: argparse.Namespace, notes: task.Notes) -> None:
        super().__init__()
        self.model = task.make_model(args.model)
        self.state: Any = None
        self._args, self._notes = args, notes

    def forward(self, number: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            step = self.state.global_step
            task.die_before(step + 1, self._args.stop)
            self._notes.trained(step + 1, step // -(-self._args.samples // self._args.global_batch), number)
        return {"loss": task.make_loss(self.model, {"x": x, "y": y}), "number": number}


class OnesModel(Model):
    """For ``accumulate``."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": task.make_loss(self.model, {"x": x})}


class SentencesModel(Model):
    """A model for ``accumulate``, which gets the number of labels of the whole step, like models of
    transformers."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **loss_kwargs: Any) -> dict[str, torch.Tensor]:
        mean = task.make_loss(self.model, {"x": x, "labels": labels})
        total = loss_kwargs.get("num_items_in_batch")
        return {"loss": mean if total is None else mean * (labels != -100).sum() / total}


def make_trainer(args: argparse.Namespace, notes: task.Notes, model: Model, data: Any, **settings: Any) -> Trainer:
    """With plain SGD, and its evaluation noted."""
    steady = {
        "use_cpu": True,
        "report_to": "none",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "label_names": ["y"],
    }
    trainer = Trainer(
        model,
        TrainingArguments(str(args.directory / "checkpoints"), **{**steady, **settings}),
        train_dataset=data,
        eval_dataset=task.Numbered(24 if args.task == "train" else args.samples),
        optimizers=(make_optimizer(args, notes, model), None),
        compute_metrics=lambda prediction: notes.evaluated(prediction.predictions.tolist()) or {},
    )
    model.state = trainer.state
    trainer.add_callback(Follow(model))
    return trainer


class Follow(TrainerCallback):
    """A callback that passes the state to the model, since a Trainer that resumes creates a new
    state."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._model.state = state


def make_optimizer(args: argparse.Namespace, notes: task.Notes, model: Model) -> torch.optim.Optimizer:
    """Of the task."""
    return task.NotedSGD(model, notes) if args.task == "accumulate" else torch.optim.SGD(model.parameters(), lr=0.1)


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """``save_steps=...`` and ``train(resume_from_checkpoint=True)``."""
    batch_size = args.global_batch // task.world_size()
    model = Model(args, notes)
    trainer = make_trainer(
        args,
        notes,
        model,
        task.Numbered(args.samples),
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        num_train_epochs=args.epochs,
        dataloader_num_workers=args.workers,
        save_steps=args.save_every,
        eval_strategy="epoch",
    )
    trainer.train(resume_from_checkpoint=bool(args.launch))
    notes.weights(model)


def evaluate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``evaluate()``; every rank gathers all."""
    trainer = make_trainer(args, notes, Model(args, notes), None, per_device_eval_batch_size=2)
    if task.world_size() > 1 and trainer.args.process_index:
        trainer.compute_metrics = lambda prediction: {}
    trainer.evaluate()


def accumulate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``gradient_accumulation_steps=2``."""
    data, batch_size = task.ACCUMULATED[args.model]
    model = (SentencesModel if args.model == "sentences" else OnesModel)(args, notes)
    settings = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": 2, "num_train_epochs": 1}
    make_trainer(args, notes, model, data(), save_strategy="no", **settings).train()


def stream(args: argparse.Namespace, notes: task.Notes) -> None:
    """A stream needs ``max_steps``, here the steps of 33 samples."""
    batch_size = args.global_batch // task.world_size()
    settings = {"per_device_train_batch_size": batch_size, "max_steps": 9, "save_strategy": "no"}
    make_trainer(args, notes, Model(args, notes), task.Files(), **settings).train()


if __name__ == "__main__":
    task.run({"train": train, "evaluate": evaluate, "accumulate": accumulate, "stream": stream})
