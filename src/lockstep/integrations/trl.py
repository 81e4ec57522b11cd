"""TRL's ``SFTTrainer`` and ``DPOTrainer`` on lockstep: the same weights and logs on any number of
processes.

::

    from lockstep.integrations.trl import SFTConfig, SFTTrainer  # and not: from trl import ...

They are as ``lockstep.integrations.transformers`` says of Trainer. TRL's own metrics (entropy,
rewards, ...) are means over shards: those that as many devices would have logged.
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
"""The minor versions of TRL for which the tests have passed."""

if ".".join(version("trl").split(".")[:2]) not in TESTED:
    raise ConfigError(
        f"trl {version('trl')} was not tested with this version of lockstep (tested: {', '.join(TESTED)}). Its trainers may "
        "keep what they log elsewhere, and then log what one process has seen. Install a tested one: "
        f'pip install "trl=={TESTED[-1]}.*"'
    )


_TOKENS = "num_tokens"
"""Of the metrics the one that is a total, and not a list of what shards had."""
_numbers = itertools.count(1)


class OfShards(Trainer):
    """Gives every rank what TRL notes of each shard: put it before one of TRL's trainers in the
    bases.

    Raises:
        ConfigError: the arguments are not lockstep's.
    """

    arguments: type[OnLockstep]
    """The class of its arguments."""
    _metrics: Any
    """TRL's: by mode and name, what was noted since the last log."""
    _total_train_tokens: int
    """TRL's."""

    def __init__(self, model: Any = None, args: Any = None, *more: Any, **named: Any) -> None:
        if not isinstance(args, self.arguments):
            raise ConfigError(
                f"{type(self).__name__}(args={type(args).__module__}.{type(args).__name__}): with other arguments than "
                f"{self.arguments.__name__} of lockstep.integrations.trl each process would train alone. Give it one."
            )
        super().__init__(model, args, *more, **named)
        self._keep()
        self.team.register(f"trl-{next(_numbers)}", self)

    @override
    def collect(self) -> Any:
        """What TRL has noted of this shard. It is taken out: ranks have run different shards."""
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
        self._keep()  # TRL has emptied its lists

    def state_dict(self) -> dict[str, Any]:
        """What the state of the run holds of TRL: equal on every rank between steps."""
        return {"metrics": _plain(self._metrics), "num_tokens": self._total_train_tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self._restore(state["metrics"], state["num_tokens"])
        self._keep()

    def _keep(self) -> None:
        """What TRL has noted by now is known to every rank."""
        self._known, self._num_known_tokens = _plain(self._metrics), self._total_train_tokens

    def _restore(self, metrics: dict[str, dict[str, list[float]]], num_tokens: int) -> None:
        for mode, values in metrics.items():
            self._metrics[mode] = defaultdict(list, {name: list(each) for name, each in values.items()})
        self._total_train_tokens = num_tokens


def _plain(metrics: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    return {mode: {name: list(values) for name, values in of_mode.items()} for mode, of_mode in metrics.items()}


@dataclass
class SFTConfig(OnLockstep, sft_config.SFTConfig):
    """TRL's ``SFTConfig`` with ``shards`` and ``lockstep``. Making it joins the run."""


@dataclass
class DPOConfig(OnLockstep, dpo_config.DPOConfig):
    """TRL's ``DPOConfig`` with ``shards`` and ``lockstep``. Making it joins the run."""


class SFTTrainer(OfShards, sft_trainer.SFTTrainer):
    """TRL's ``SFTTrainer`` on lockstep. Every rank must make it and call its methods, in the same
    order."""

    arguments = SFTConfig


class DPOTrainer(OfShards, dpo_trainer.DPOTrainer):
    """TRL's ``DPOTrainer`` on lockstep. Every rank must make it and call its methods, in the same
    order."""

    arguments = DPOConfig
