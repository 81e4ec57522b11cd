"""Trainings of a feature that save the run after every step."""

from pathlib import Path

from checkpoint_files import save_at_once
from trainer_features import FEATURES, SHARDS, come_to, prepared

from lockstep.integrations.transformers import Trainer, TrainingArguments


def train(name, out, run_dirs):
    """What trainings come to, one after the other, with these run directories."""
    return [trained(name, out, run_dir) for run_dir in run_dirs]


def trained(name, out, run_dir):
    settings = {"run_dir": str(run_dir), "checkpoint_every": 1, "keep": 99}
    trainer = prepared(name, Trainer, TrainingArguments, Path(out), shards=SHARDS, lockstep=settings)
    save_at_once(trainer.team._engine.saver)
    try:
        return come_to(trainer, FEATURES[name].act)
    finally:
        trainer.team.close()
