"""One call of ``training_step`` or another step, for one shard or batch: what it does beside its
result is noted, shared, and then done once on every rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lockstep._data.batches import map_tensors
from lockstep.integrations.lightning._append_only import append_only
from lockstep.integrations.lightning._attributes import Attributes, Growth
from lockstep.integrations.lightning._logs import Log, as_plain, combine
from lockstep.integrations.lightning._metrics import Metrics, Update


@dataclass
class Noted:
    """What a step did for one shard."""

    num_samples: int
    logs: list[Log] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    grown: list[Growth] = field(default_factory=list)
    assigned: list[str] = field(default_factory=list)
    stops: bool = False
    """Whether it has set ``trainer.should_stop``."""
    result: Any = None
    """What else is shared of it: a loss, a prediction."""

    def shared(self) -> tuple[Any, ...]:
        """As a tree of tensors and plain values."""
        grown = map_tensors(Tensor.detach, self.grown)
        return self.num_samples, self.logs, self.updates, grown, self.assigned, self.stops, self.result


class Steps:
    """Runs steps of a module.

    Args:
        module: the module.
        device: where it is.
    """

    def __init__(self, module: LightningModule, device: torch.device) -> None:
        self._module = module
        self._device = device
        self._metrics = Metrics(module)
        self._attributes = Attributes(module)

    @contextlib.contextmanager
    def noting(self, step: str, num_samples: int, *, at_once: bool = False) -> Iterator[Noted]:
        """Run a step inside, for one shard of so many samples, and note what it does.

        Args:
            step: its name.
            num_samples: of the shard.
            at_once: whether other batches are evaluated at the same time, so that the step must not
                see what they append to lists.
        """
        noted = Noted(num_samples)
        before, inside = self._attributes.look(), self._attributes.look_inside(buffers=step != "training_step")
        self._metrics.shadow(noted.updates, step)
        vars(self._module)["log"] = self._noting_log(noted.logs)
        trainer = self._module.trainer
        stopped, trainer.should_stop = trainer.should_stop, False
        lists = self._attributes.lists() if at_once else []
        try:
            with append_only([(holder, path[-1], name) for path, holder, name in lists], step) as taken:
                yield noted
        finally:
            noted.stops, trainer.should_stop = trainer.should_stop, stopped
            del vars(self._module)["log"]
            self._metrics.restore()
        self._attributes.check_inside(inside, step)
        noted.grown, noted.assigned = self._attributes.changes(before, step)
        noted.grown += [(lists[number][0], items) for number, items in taken.items()]

    def _noting_log(self, logs: list[Log]) -> Callable[..., None]:
        real = type(self._module).log

        def log(name: str, value: Any, *args: Any, **options: Any) -> None:
            plain = None if args else as_plain(value, options, self._metrics.names)
            if plain is None:
                names = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx")
                options.update(zip(names, args, strict=False))
                plain = as_plain(value, options, self._metrics.names)
            if plain is None:
                real(self._module, name, value, **options)  # raises
                return
            logs.append((name, *plain))

        return log

    def repeat(self, step: str, shares: list[tuple[Any, ...]]) -> list[tuple[int, Any]]:
        """Do on this rank what the step did for all shards of a batch. Every rank must call it,
        with the same.

        Returns:
            For each shard, its number of samples and its result.
        """
        noted = [Noted(*share) for share in shares]
        logs = combine([(one.logs, one.num_samples) for one in noted])
        with_values = any(options.get("on_step") is not False for _, value, options in logs if value is None)
        self._metrics.replay([one.updates for one in noted], lambda tensor: tensor.to(self._device), with_values=with_values)
        if any(one.stops for one in noted):
            self._module.trainer.should_stop = True
        for one in noted:
            self._attributes.hide(one.assigned, step)
            for path, items in one.grown:
                self._attributes.append(tuple(path), list(map_tensors(lambda tensor: tensor.to(self._device), items)))
        for name, value, options in logs:
            logged: Any = (
                self._module.get_submodule(options["metric_attribute"]) if value is None else value.to(self._device)
            )
            self._module.log(name, logged, **options)
        return [(one.num_samples, one.result) for one in noted]
