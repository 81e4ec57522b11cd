"""The guards of what is trained: what a shard must not do to it, since each process runs only its own shards."""

from __future__ import annotations

from torch import nn

from lockstep.prepare.shard_gradients import ShardGradients
from lockstep.prepare.shard_weights import ShardWeights
from lockstep.prepare.strangers import Strangers
from lockstep.prepare.trained import TrainedObjects


class ShardGuards:
    """They find gradients, changes of weights, and parameters that belong to no prepared model.

    Args:
        num_shards: V. With a single shard, changes inside ``batch.shards`` are allowed.
        is_plain: whether a step is that of a plain single-device script, with the same ``.grad``.
    """

    def __init__(self, trained: TrainedObjects, num_shards: int, *, is_plain: bool) -> None:
        self.is_strict = num_shards > 1
        """Whether changes inside ``batch.shards`` are refused."""
        self.gradients = ShardGradients(trained.parameters, is_plain=is_plain)
        self.strangers = Strangers(trained.ids)
        self.weights = ShardWeights(trained.parameters, trained.optimizers, trained.schedules)

    def add_model(self, model: nn.Module) -> None:
        """Guard a model."""
        self.gradients.add_model(model)
        self.weights.add_model(model)
