"""Steps (``training_step`` and others), each of which runs for one shard or batch on one process.

A step returns a result and has side effects: ``self.log``, metrics, lists, ``should_stop``. To
Lightning, all processes are one, so side effects must happen on every rank, in shard order::

    process of the shard        noting():  runs the step and records its side effects
    all processes               share the records
    every process               repeat():  applies the side effects of all shards once
"""

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
    """The record of a step for one shard: its result and its side effects."""

    num_samples: int
    logs: list[Log] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    grown: list[Growth] = field(default_factory=list)
    assigned: list[str] = field(default_factory=list)
    stops: bool = False
    """Whether the step set ``trainer.should_stop``."""
    result: Any = None
    """The result that is shared, such as a loss or a prediction."""

    def shared(self) -> tuple[Any, ...]:
        """Returns the record as a tree of tensors and plain values."""
        grown = map_tensors(Tensor.detach, self.grown)
        return self.num_samples, self.logs, self.updates, grown, self.assigned, self.stops, self.result


class Steps:
    """The steps of a module.

    Args:
        module: the module.
        device: the device of the module.
    """

    def __init__(self, module: LightningModule, device: torch.device) -> None:
        self._module = module
        self._device = device
        self._metrics = Metrics(module)
        self._attributes = Attributes(module)

    @contextlib.contextmanager
    def noting(self, step: str, num_samples: int, *, concurrent: bool = False) -> Iterator[Noted]:
        """Records the side effects of a step inside the block.

        Args:
            step: the name of the step.
            num_samples: the number of samples of the shard.
            concurrent: whether other processes evaluate other batches at the same time, so that the
                step must not read lists to which steps append.
        """
        noted = Noted(num_samples)
        before, inside = self._attributes.look(), self._attributes.look_inside(buffers=step != "training_step")
        self._metrics.shadow(noted.updates, step)
        vars(self._module)["log"] = self._noting_log(noted.logs)
        trainer = self._module.trainer
        stopped, trainer.should_stop = trainer.should_stop, False
        lists = self._attributes.lists() if concurrent else []
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
                real(self._module, name, value, **options)  # Raises Lightning's own error.
                return
            logs.append((name, *plain))

        return log

    def repeat(self, step: str, shares: list[tuple[Any, ...]]) -> list[tuple[int, Any]]:
        """Applies the side effects of a step for all shards of a batch on this rank. Every rank
        must call it with the same arguments.

        Returns:
            The number of samples and the result of each shard.
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
