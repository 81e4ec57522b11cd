"""The values over the global batch for scripts that call ``gather`` or ``reduce``."""

from __future__ import annotations

from typing import Any

from lockstep._base.errors import ConfigError
from lockstep.integrations.accelerate._batches import Reduced
from lockstep.integrations.accelerate._evaluated import EvaluatedBatch
from lockstep.integrations.accelerate._promise import Promise, note, promises_in, replaced, value_of
from lockstep.integrations.accelerate._structure import map_tensors


def gather(tensors: Any, *, truncate: bool = False) -> Any:
    """Returns the tree with values instead of promises, where they are known or can be computed.
    Every rank must call it.

    All values of an evaluation batch are exchanged in one message.

    Args:
        tensors: the tree.
        truncate: whether to drop rows beyond the samples of a smaller last batch of an evaluation.
    """
    evaluated: dict[int, tuple[EvaluatedBatch, list[Promise]]] = {}
    for promise in promises_in(tensors):
        source = promise._node.source
        if isinstance(source, EvaluatedBatch) and not promise._node.has_value:
            evaluated.setdefault(source.serial, (source, []))[1].append(promise)
    for batch, promises in evaluated.values():
        for promise, value in zip(promises, batch.values([promise._node for promise in promises]), strict=True):
            promise._node.settle(value)

    def gathered(promise: Promise) -> Any:
        if not _is_known(promise):
            return promise
        rows = getattr(promise._node.source, "num_rows", None) if truncate else None
        value = value_of(promise)
        return value if rows is None else map_tensors(value, lambda tensor: tensor[:rows] if tensor.ndim else tensor)

    return replaced(tensors, gathered)


def reduce(tensors: Any, reduction: str) -> Any:
    """Returns the tree with known values instead of promises. An unknown value, a number of each
    shard, becomes a promise of the mean or sum over the shards.

    Raises:
        ConfigError: the reduction is unknown.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ConfigError(
            f"accelerator.reduce(reduction={reduction!r}) is not supported. Use 'mean', 'sum' or 'none'.",
            code="unknown-reduction",
        )

    def combined(promise: Promise) -> Any:
        if _is_known(promise):
            return value_of(promise)
        return promise if reduction == "none" else note(Reduced(reduction), promise)

    return replaced(tensors, combined)


def _is_known(promise: Promise) -> bool:
    return promise._node.has_value or promise._node.source.is_ready
