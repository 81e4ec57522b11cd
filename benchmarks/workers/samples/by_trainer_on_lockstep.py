"""transformers' Trainer on lockstep, as docs/how-to/trainer.md has it: the same command resumes."""

from __future__ import annotations

import argparse
from typing import Any

import by_trainer
import task
from transformers import TrainerCallback

from lockstep.integrations.transformers import Trainer, TrainingArguments


class Die(TrainerCallback):
    """Dies when a step begins, by ``task.die_before``."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._directory, self._stop = args.directory, args.stop

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        saved = self._directory / "run" / "checkpoints" / f"step-{state.global_step:08}"
        task.die_before(state.global_step + 1, self._stop, saved)


def make_trainer(
    args: argparse.Namespace, notes: task.Notes, model: by_trainer.Model, data: Any, **settings: Any
) -> Trainer:
    """With plain SGD, and its evaluation noted. Every rank has all predictions."""
    steady = {
        "use_cpu": True,
        "report_to": "none",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "label_names": ["y"],
        "save_strategy": "no",
        "lockstep": {"run_dir": args.directory / "run", "checkpoint_every": args.save_every},
    }
    arguments = TrainingArguments(str(args.directory / "checkpoints"), **{**steady, **settings})

    def note(prediction: Any) -> dict[str, float]:
        if arguments.process_index == 0:
            notes.evaluated(prediction.predictions.tolist())
        return {}

    trainer = Trainer(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=task.Numbered(24 if args.task == "train" else args.samples),
        optimizers=(by_trainer.make_optimizer(args, notes, model), None),
        compute_metrics=note,
        callbacks=[by_trainer.Follow(model), Die(args)],
    )
    model.state = trainer.state
    return trainer


def alone(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of a model that dies of nothing itself: inside of a shard no process may wait
    for others."""
    return argparse.Namespace(**{**vars(args), "stop": None})


def train(args: argparse.Namespace, notes: task.Notes) -> None:
    """One sample for each of as many "devices" as there are samples in the global batch."""
    model = by_trainer.Model(alone(args), notes)
    trainer = make_trainer(
        args,
        notes,
        model,
        task.Numbered(args.samples),
        shards=args.global_batch,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=args.global_batch,
        num_train_epochs=args.epochs,
        dataloader_num_workers=args.workers,
        eval_strategy="epoch",
    )
    trainer.train()
    notes.weights(model)


def evaluate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``evaluate()``."""
    make_trainer(args, notes, by_trainer.Model(args, notes), None, per_device_eval_batch_size=2).evaluate()


def accumulate(args: argparse.Namespace, notes: task.Notes) -> None:
    """``gradient_accumulation_steps=2``."""
    data, batch_size = task.ACCUMULATED[args.model]
    model = (by_trainer.SentencesModel if args.model == "sentences" else by_trainer.OnesModel)(args, notes)
    settings = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": 2, "num_train_epochs": 1}
    make_trainer(args, notes, model, data(), shards=task.world_size(), **settings).train()


def stream(args: argparse.Namespace, notes: task.Notes) -> None:
    """A stream needs ``max_steps``, here the steps of 33 samples."""
    settings = {"shards": args.global_batch, "per_device_train_batch_size": 1, "max_steps": 9}
    make_trainer(args, notes, by_trainer.Model(args, notes), task.Files(), **settings).train()


if __name__ == "__main__":
    task.run({"train": train, "evaluate": evaluate, "accumulate": accumulate, "stream": stream})
