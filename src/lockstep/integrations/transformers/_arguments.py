"""``TrainingArguments``: transformers', and those of the run, which they join."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import transformers

from lockstep._base.errors import ConfigError
from lockstep._joining.team import Team
from lockstep._world.environment import read_environment
from lockstep.integrations.transformers._host import HostArguments
from lockstep.integrations.transformers._refusals import check_arguments
from lockstep.integrations.transformers._session import join_with

_PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
_FOLLOWING = {
    "shards": "shards",
    "accumulate": "gradient_accumulation_steps",
    "seed": "seed",
    "precision": "bf16 or fp16",
    "device": "use_cpu",
}
"""Settings of the run that follow from arguments, and from which."""


@dataclass
class OnLockstep(HostArguments):
    """What lockstep adds to a class of training arguments: put it before that in the bases of a
    dataclass, as ``TrainingArguments`` below does. When they are made, they join the run: every
    rank must make them, with equal values."""

    shards: int | None = field(
        default=8,
        metadata={
            "help": "Number of shards of each global batch: what 'device' means in per_device_train_batch_size. Results are "
            "equal on any number of processes up to this. None: given by `lockstep run --shards`."
        },
    )
    lockstep: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": 'Further settings of lockstep.join(), such as {"strategy": "fsdp", "checkpoint_every": "5m"}.'},
    )

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*transformers.TrainingArguments._VALID_DICT_FIELDS, "lockstep"]

    def join(self) -> Team:
        """Join the run, once in a process. Every rank must call it; made by transformers when it
        asks for the device."""
        check_arguments(self)
        return join_with(self.settings(), _FOLLOWING)

    def settings(self) -> dict[str, Any]:
        """The settings of ``lockstep.join`` that follow from the arguments.

        Raises:
            ConfigError: ``lockstep`` has one that is an argument of its own, or is not a dict.
        """
        own = self.lockstep or {}
        if not isinstance(own, dict):
            raise ConfigError(
                f"lockstep={own!r}: give a dict of settings of lockstep.join(), or one in JSON: '{{\"keep\": 3}}'"
            )
        for name in own.keys() & _FOLLOWING.keys():
            if name not in ("precision", "device"):
                raise ConfigError(
                    f"lockstep={{{name!r}: {own[name]!r}}}: it follows from the argument {_FOLLOWING[name]}. Set that."
                )
        settings: dict[str, Any] = {"seed": self.seed}
        if self.shards is not None:
            settings["shards"] = self.shards
        if self.gradient_accumulation_steps > 1:
            settings["accumulate"] = self.gradient_accumulation_steps
        if self.mixed_precision in _PRECISIONS:
            settings["precision"] = _PRECISIONS[self.mixed_precision]
        if self.use_cpu:
            settings["device"] = "cpu"
        if not self.disable_tqdm and "progress" not in read_environment().settings:
            settings["progress"] = "off"  # there is the host's
        if self.ddp_timeout != type(self).ddp_timeout:
            settings["timeout_s"] = float(self.ddp_timeout)
        if self.ddp_backend is not None:
            settings["backend"] = self.ddp_backend
        for name in settings.keys() & own.keys():
            if own[name] != settings[name] and name != "progress":
                raise ConfigError(
                    f"lockstep={{{name!r}: {own[name]!r}}} conflicts with the argument {_FOLLOWING.get(name, name)}, from "
                    f"which {name}={settings[name]!r} follows. Set it in one place."
                )
        return {**settings, **own}

    @property
    def train_batch_size(self) -> int:
        """Samples of a global batch, less gradient accumulation."""
        return int(self.per_device_train_batch_size * (self.shards or self.team.num_shards))

    @property
    def eval_batch_size(self) -> int:
        """Samples of an evaluation batch: whole batches are dealt to the processes, and so their
        size is that of a device."""
        return int(self.per_device_eval_batch_size)

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block on rank 0 first, then on the others. Every rank must enter it."""
        with self.team.main_first():
            yield


@dataclass
class TrainingArguments(OnLockstep, transformers.TrainingArguments):
    """transformers' ``TrainingArguments`` with ``shards`` and ``lockstep``. Making them joins the
    run."""


@dataclass
class Seq2SeqTrainingArguments(OnLockstep, transformers.Seq2SeqTrainingArguments):
    """transformers' ``Seq2SeqTrainingArguments`` with ``shards`` and ``lockstep``. Making them
    joins the run."""
