"""TRL's ``SFTTrainer`` and ``DPOTrainer`` on lockstep: the same weights and logs on any number of
processes.

::

    from lockstep.integrations.trl import SFTConfig, SFTTrainer  # and not: from trl import ...

The rules of ``lockstep.integrations.transformers`` apply. TRL's metrics (entropy, rewards, ...) are
means over shards, as if each shard had a device.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from trl.trainer import dpo_config, dpo_trainer, sft_config, sft_trainer
from typing_extensions import override

from lockstep._base.errors import ConfigError
from lockstep.integrations.transformers._arguments import OnLockstep
from lockstep.integrations.transformers._trainer import Trainer

__all__ = ["DPOConfig", "DPOTrainer", "SFTConfig", "SFTTrainer"]

TESTED = ("1.16",)
"""The minor versions of TRL for which lockstep's tests pass."""

if ".".join(version("trl").split(".")[:2]) not in TESTED:
    raise ConfigError(
        f"trl {version('trl')} is not tested with this version of lockstep (tested: {', '.join(TESTED)}). Its trainers may "
        "log the values of one process only. Install a tested version: "
        f'pip install "trl=={TESTED[-1]}.*"',
        code="untested-version",
    )


_TOKENS = "num_tokens"
"""The only metric of TRL that is a total instead of a list of values."""
_numbers = itertools.count(1)


class SharedMetrics(Trainer):
    """A trainer that gives every rank the metrics that TRL records for each shard. Put it before
    one of TRL's trainers among the bases.

    TRL's ``compute_loss`` appends metrics to a private list, on the rank that computes the shard.
    After each shard, ``collect`` takes them out of that list; after the step, ``take`` adds the
    metrics of all shards on every rank, in shard order.

    Raises:
        ConfigError: the arguments are not lockstep's.
    """

    arguments: type[OnLockstep]
    """The class of the trainer's arguments."""
    _metrics: Any
    """The values that TRL recorded since the last log, by mode and name."""
    _total_train_tokens: int
    """The number of training tokens that TRL counted."""

    def __init__(self, model: Any = None, args: Any = None, *more: Any, **named: Any) -> None:
        if not isinstance(args, self.arguments):
            raise ConfigError(
                f"{type(self).__name__}(args={type(args).__module__}.{type(args).__name__}): only arguments of lockstep join "
                f"a run; with others, each process would train alone. Pass {self.arguments.__name__} of "
                "lockstep.integrations.trl.",
                code="arguments-of-trl",
            )
        super().__init__(model, args, *more, **named)
        self._keep()
        self.team.register(f"trl-{next(_numbers)}", self)

    @override
    def collect(self) -> Any:
        """Removes the values that TRL recorded for this shard from its lists, and returns them."""
        noted = {
            mode: {
                name: values[len(self._known[mode].get(name, ())) :] for name, values in metrics.items() if name != _TOKENS
            }
            for mode, metrics in self._metrics.items()
        }
        num_tokens = self._total_train_tokens - self._num_known_tokens
        self._restore(self._known, self._num_known_tokens)
        return noted, num_tokens

    @override
    def take(self, collected: list[Any]) -> None:
        for noted, num_tokens in collected:
            self._total_train_tokens += num_tokens
            for mode, metrics in noted.items():
                for name, values in metrics.items():
                    self._metrics[mode][name].extend(values)
                if metrics:
                    self._metrics[mode][_TOKENS] = [self._total_train_tokens]
        self._keep()

    @override
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self._keep()  # TRL emptied its lists.

    def state_dict(self) -> dict[str, Any]:
        """Returns TRL's metrics for the state of the run. Between steps, they are equal on every
        rank."""
        return {"metrics": _plain(self._metrics), "num_tokens": self._total_train_tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores TRL's metrics."""
        self._restore(state["metrics"], state["num_tokens"])
        self._keep()

    def _keep(self) -> None:
        """Marks TRL's values so far as known to every rank."""
        self._known, self._num_known_tokens = _plain(self._metrics), self._total_train_tokens

    def _restore(self, metrics: dict[str, dict[str, list[float]]], num_tokens: int) -> None:
        for mode, values in metrics.items():
            self._metrics[mode] = defaultdict(list, {name: list(each) for name, each in values.items()})
        self._total_train_tokens = num_tokens


def _plain(metrics: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    return {mode: {name: list(values) for name, values in of_mode.items()} for mode, of_mode in metrics.items()}


@dataclass
class SFTConfig(OnLockstep, sft_config.SFTConfig):
    """TRL's ``SFTConfig`` with ``shards`` and ``lockstep``. Creating it joins the run."""


@dataclass
class DPOConfig(OnLockstep, dpo_config.DPOConfig):
    """TRL's ``DPOConfig`` with ``shards`` and ``lockstep``. Creating it joins the run."""


class SFTTrainer(SharedMetrics, sft_trainer.SFTTrainer):
    """TRL's ``SFTTrainer`` on lockstep. Every rank must create it and call its methods, in the same
    order."""

    arguments = SFTConfig


class DPOTrainer(SharedMetrics, dpo_trainer.DPOTrainer):
    """TRL's ``DPOTrainer`` on lockstep. Every rank must create it and call its methods, in the same
    order."""

    arguments = DPOConfig
