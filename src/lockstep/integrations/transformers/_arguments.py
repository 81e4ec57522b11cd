"""``TrainingArguments`` with settings of lockstep. Creating them joins the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
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
_ARGUMENT_OF = {
    "shards": "shards",
    "accumulate": "gradient_accumulation_steps",
    "seed": "seed",
    "precision": "bf16 or fp16",
    "device": "use_cpu",
}
"""The argument of ``TrainingArguments`` that determines each of these settings of the run."""

_is_ours = ContextVar("lockstep-trainer", default=False)
"""Whether the Trainer that is being created is lockstep's."""


@contextlib.contextmanager
def creating_trainer() -> Iterator[None]:
    """Marks the creation of a Trainer of lockstep inside the block."""
    before = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(before)


@dataclass
class OnLockstep(HostArguments):
    """The fields that lockstep adds to training arguments.

    To use it with another class of arguments, put it first among the bases of a dataclass, as
    ``TrainingArguments`` below does. Creating the arguments joins the run, so every rank must
    create them, with equal values."""

    shards: int | None = field(
        default=8,
        metadata={
            "help": "Number of shards of each global batch ('device' in per_device_train_batch_size means shard). Results "
            "are equal on any number of processes up to this number. None: the value of `lockstep run --shards`."
        },
    )
    lockstep: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": 'Further settings of lockstep.join(), such as {"strategy": "fsdp", "checkpoint_every": "5m"}.'},
    )

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*transformers.TrainingArguments._VALID_DICT_FIELDS, "lockstep"]

    def join(self) -> Team:
        """Joins the run, once per process. transformers calls it when it first needs the device.
        Every rank must call it."""
        check_arguments(self)
        return join_with(self.settings(), _ARGUMENT_OF)

    def settings(self) -> dict[str, Any]:
        """Returns the settings of ``lockstep.join`` that result from the arguments.

        Raises:
            ConfigError: ``lockstep`` is not a dict, or has a setting that another argument
                determines.
        """
        own = self.lockstep or {}
        if not isinstance(own, dict):
            raise ConfigError(
                f"lockstep={own!r} is not a dict of settings of lockstep.join(). Pass a dict, or a dict in JSON: "
                "'{\"keep\": 3}'.",
                code="settings-not-a-dict",
            )
        for name in own.keys() & _ARGUMENT_OF.keys():
            if name not in ("precision", "device"):
                raise ConfigError(
                    f"lockstep={{{name!r}: {own[name]!r}}}: this setting is determined by {_ARGUMENT_OF[name]}. Set "
                    f"{_ARGUMENT_OF[name]} instead.",
                    code="setting-of-argument",
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
            settings["progress"] = "off"  # Trainer displays a progress bar itself.
        if self.ddp_timeout != type(self).ddp_timeout:
            settings["timeout_s"] = float(self.ddp_timeout)
        if self.ddp_backend is not None:
            settings["backend"] = self.ddp_backend
        for name in settings.keys() & own.keys():
            if own[name] != settings[name] and name != "progress":
                raise ConfigError(
                    f"lockstep={{{name!r}: {own[name]!r}}} conflicts with the argument {_ARGUMENT_OF.get(name, name)}, which "
                    f"means {name}={settings[name]!r}. Set only one of them.",
                    code="setting-of-argument",
                )
        return {**settings, **own}

    @property
    def train_batch_size(self) -> int:
        """The number of samples of a global batch, without gradient accumulation."""
        return int(self.per_device_train_batch_size * (self.shards or self.team.num_shards))

    @property
    def eval_batch_size(self) -> int:
        """The number of samples of an evaluation batch. It is not multiplied by the shards, since
        one process evaluates each batch."""
        return int(self.per_device_eval_batch_size)

    @property
    def place_model_on_device(self) -> bool | None:
        """Whether Trainer moves the model, as transformers decides.

        Every Trainer reads it when it is created, and integrations may override it. So it is where
        a Trainer that is not lockstep's is noticed.

        Raises:
            ConfigError: the Trainer that reads it is not lockstep's.
        """
        if not _is_ours.get():
            raise ConfigError(
                f"a Trainer of another module was created with {type(self).__module__}.{type(self).__name__}: only lockstep's "
                "Trainer divides the work, and each process would train the complete job alone. Import both: `from "
                "lockstep.integrations.transformers import Trainer, TrainingArguments`. For another trainer that derives from "
                "transformers': `class MyTrainer(lockstep.integrations.transformers.Trainer, TheirTrainer)`.",
                code="trainer-of-transformers",
            )
        placed: bool | None = super().place_model_on_device
        return placed

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Runs the block on rank 0 first, then on the others. Every rank must enter it."""
        with self.team.main_first():
            yield


@dataclass
class TrainingArguments(OnLockstep, transformers.TrainingArguments):
    """transformers' ``TrainingArguments`` with ``shards`` and ``lockstep``. Creating them joins the
    run."""


@dataclass
class Seq2SeqTrainingArguments(OnLockstep, transformers.Seq2SeqTrainingArguments):
    """transformers' ``Seq2SeqTrainingArguments`` with ``shards`` and ``lockstep``. Creating them
    joins the run."""
