"""What Trainer refuses on lockstep, tried in one process after another."""

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from accelerate.utils import ParallelismConfig
from codes import refusal_of
from trainer_features import PLACE, USUAL, Stream, accuracy, classifier, rows, running_mean
from transformers.utils import logging

import lockstep
from lockstep.integrations.transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from lockstep.integrations.transformers import _session as session
from lockstep.integrations.transformers._versions import check_version


class Replaced(Trainer):
    def _run_epoch(self, **kwargs):
        pass


class Backward(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        loss.backward()
        return loss.detach()


class Logs(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.log({"of this shard": loss.item()})
        return (loss, outputs) if return_outputs else loss


class Full(Trainer):
    def compute_loss(self, *args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.")


class Masking:
    """A collator that draws from a separate generator, created in its first call."""

    def __init__(self):
        self.seed, self.generator = 1, None

    def __call__(self, samples):
        self.generator = self.generator or torch.Generator().manual_seed(self.seed)
        batch = transformers.default_data_collator(samples)
        return {**batch, "input_ids": batch["input_ids"] * torch.randint(0, 2, (8,), generator=self.generator)}


@dataclass
class Case:
    """A refused case. ``name`` is in the message; the other fields are arguments and calls."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)
    kind: Any = Trainer
    arguments: Any = TrainingArguments
    act: Any = Trainer.train
    eval_set: Any = list
    metrics: Any = accuracy
    collate: Any = None


def search(trainer):
    trainer.hyperparameter_search()


def resume_from_path(trainer):
    trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-5")


def resume_from_number(trainer):
    trainer.train(resume_from_checkpoint=5)


def assign(trainer):
    trainer.training_step = lambda model, inputs, num_items_in_batch=None: torch.zeros(())
    trainer.train()


def evaluate(trainer):
    trainer.evaluate()


def more_arguments(trainer):
    TrainingArguments(trainer.args.output_dir, **{**USUAL, "gradient_accumulation_steps": 2})


def plain_arguments(*args, **kwargs):
    for variable in PLACE:
        os.environ.pop(variable, None)
    return transformers.TrainingArguments(*args, **kwargs)


CASES = [
    Case("deepspeed", {"deepspeed": {"zero_optimization": {"stage": 2}}}),
    Case("fsdp", {"fsdp": "full_shard"}),
    Case("parallelism_config", {"parallelism_config": ParallelismConfig()}),
    Case("torch_compile", {"torch_compile": True}),
    Case("bf16_full_eval", {"bf16_full_eval": True}),
    Case("enable_jit_checkpoint", {"enable_jit_checkpoint": True}),
    Case("data_seed", {"data_seed": 3}),
    Case("optim", {"optim": "adalomo"}),
    Case("optim", {"optim": "adamw_torch_fused", "lockstep": {"strategy": "fsdp"}}),
    Case("split_batches", {"accelerator_config": {"split_batches": True}}),
    Case("num_steps", {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}}),
    Case("use_configured_state", {"accelerator_config": {"use_configured_state": True}}),
    Case("accumulate", {"lockstep": {"accumulate": 2}}),
    Case("precision", {"lockstep": {"precision": "16-true"}, "bf16": True}),
    Case("stratgy", {"lockstep": {"stratgy": "fsdp"}}),
    Case("_run_epoch", kind=Replaced),
    Case("team.backward", kind=Backward),
    Case("team.log", kind=Logs),
    Case("per_device_train_batch_size", {"auto_find_batch_size": True}, kind=Full),
    Case("hyperparameter_search", act=search),
    Case("checkpoint-5", act=resume_from_path),
    Case("resume_from_checkpoint=5", act=resume_from_number),
    Case("gradient_accumulation_steps", act=more_arguments),
    Case(
        "batch_eval_metrics",
        {"batch_eval_metrics": True, "eval_strategy": "epoch"},
        eval_set=Stream,
        metrics=running_mean,
    ),
    Case("seed=1", collate=Masking()),
    Case("Masking", act=evaluate, collate=Masking()),
    Case("trainer.training_step", act=assign),
    Case("TrainingArguments", arguments=plain_arguments, kind=Trainer),
]


def attempt(number, out):
    """Returns the message of a case's error; empty: there was none."""
    logging.set_verbosity_error()
    case = CASES[number]
    is_plain = case.arguments is plain_arguments
    own = {} if is_plain else {"lockstep": {"checkpoint_every": "off", **case.args.get("lockstep", {})}}
    try:
        args = case.arguments(str(out), **{**USUAL, **case.args, **own})
        trainer = case.kind(
            classifier(),
            args,
            train_dataset=rows(20),
            eval_dataset=case.eval_set(rows(5)),
            compute_metrics=case.metrics,
            data_collator=case.collate,
        )
        case.act(trainer)
    except (lockstep.ConfigError, lockstep.UsageError) as error:
        return str(error)
    finally:
        if session._team is not None and not session._team.is_closed:
            with contextlib.suppress(Exception):
                session._team.close()
    return ""


def attempt_all(out):
    return [case.name for case in CASES], [attempt(number, out) for number in range(len(CASES))]


def half_changed(out):
    """The codes of the errors of transformers' trainers with lockstep's arguments, before and after
    the same arguments serve lockstep's."""
    logging.set_verbosity_error()
    pairs = (
        (transformers.Trainer, Trainer, TrainingArguments),
        (transformers.Seq2SeqTrainer, Seq2SeqTrainer, Seq2SeqTrainingArguments),
    )
    codes = []
    for plain, ours, arguments in pairs:
        args = arguments(str(out), **USUAL)
        for kind in (plain, ours, plain):
            refusal = refusal_of(lambda kind=kind, args=args: kind(classifier(), args, train_dataset=rows(20)))
            codes.append(None if refusal is None else refusal[1])
    return codes


def refused_version(version):
    try:
        check_version(version)
    except lockstep.ConfigError as error:
        return str(error)
    return ""
