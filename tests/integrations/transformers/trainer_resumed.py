"""Trainings of a feature that save the run after every step."""

from pathlib import Path

from trainer_features import FEATURES, SHARDS, come_to, prepared

from lockstep.integrations.transformers import Trainer, TrainingArguments


def train(name, out, run_dirs):
    """What trainings come to, one after the other, with these run directories."""
    return [trained(name, out, run_dir) for run_dir in run_dirs]


def trained(name, out, run_dir):
    settings = {"run_dir": str(run_dir), "checkpoint_every": 1, "keep": 99}
    trainer = prepared(name, Trainer, TrainingArguments, Path(out), shards=SHARDS, lockstep=settings)
    saver, save = trainer.team._engine.saver, trainer.team._engine.saver.save

    def save_now(*args, **options):
        save(*args, **options)
        assert saver.wait_until_written()

    saver.save = save_now
    try:
        return come_to(trainer, FEATURES[name].act)
    finally:
        trainer.team.close()
