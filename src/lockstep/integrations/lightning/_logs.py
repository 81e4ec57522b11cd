"""``self.log`` inside a step: called for each shard, logged once for the global batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

Log = tuple[str, Any, dict[str, Any]]
"""A call of ``self.log``: the name, the value (a number or a scalar tensor; None for a metric
object, whose name is among the options) and the options."""
_REDUCTIONS: dict[Any, str] = {
    torch.mean: "mean",
    torch.sum: "sum",
    torch.max: "max",
    torch.min: "min",
    max: "max",
    min: "min",
    sum: "sum",
}


def as_plain(value: Any, options: dict[str, Any], metric_names: dict[int, str]) -> tuple[Any, dict[str, Any]] | None:
    """Returns a logged value and its options in the form in which ranks share them; None: they are
    invalid, and Lightning must raise its error."""
    options = {
        name: given for name, given in options.items() if name not in ("sync_dist", "sync_dist_group", "enable_graph")
    }
    reduction = options.get("reduce_fx", "mean")
    reduction = reduction.lower() if isinstance(reduction, str) else _REDUCTIONS.get(reduction)
    if reduction not in ("mean", "avg", "sum", "max", "min"):
        return None
    options["reduce_fx"] = "mean" if reduction == "avg" else reduction
    if isinstance(value, Metric):
        name = options.get("metric_attribute") or metric_names.get(id(value))
        return None if name is None else (None, {**options, "metric_attribute": name})
    if isinstance(value, Tensor):
        return (value.detach().clone(), options) if value.numel() == 1 else None
    return (value, options) if isinstance(value, int | float) else None


def combine(shards: list[tuple[list[Log], int]]) -> list[Log]:
    """Combines the calls of ``self.log`` of all shards of a batch. Calls with the same name and the
    same place among the calls of their shards become one call.

    A mean is weighted by ``batch_size``, or without it by the shard's number of samples. All sums
    are computed in shard order and double precision, so they do not depend on where shards ran.

    Args:
        shards: for each shard, in order, its calls and its number of samples.
    """
    calls: dict[tuple[str, int], list[tuple[Any, dict[str, Any], int]]] = {}
    for logs, num_samples in shards:
        seen: dict[str, int] = {}
        for name, value, options in logs:
            seen[name] = seen.get(name, 0) + 1
            calls.setdefault((name, seen[name]), []).append((value, options, options.get("batch_size") or num_samples))
    return [(name, *_combined(same)) for (name, _), same in calls.items()]


def _combined(same: list[tuple[Any, dict[str, Any], int]]) -> tuple[Any, dict[str, Any]]:
    first, options, _ = same[0]
    options = {**options, "batch_size": sum(size for _, _, size in same)}
    if "metric_attribute" in options:
        return None, options
    numbers, sizes = [float(value) for value, _, _ in same], [size for _, _, size in same]
    result = _OF[options["reduce_fx"]](numbers, sizes)
    dtype = first.dtype if isinstance(first, Tensor) and first.is_floating_point() else torch.get_default_dtype()
    return torch.tensor(result, dtype=dtype), options


def _mean(numbers: list[float], sizes: list[int]) -> float:
    weights = sum(sizes)
    return sum(n * size for n, size in zip(numbers, sizes, strict=True)) / weights if weights else math.nan


def _largest(numbers: list[float], _: list[int]) -> float:
    # Like torch.max. Python's max() would depend on the order of the numbers.
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)


def _smallest(numbers: list[float], _: list[int]) -> float:
    return math.nan if any(map(math.isnan, numbers)) else min(numbers)


def _sum(numbers: list[float], _: list[int]) -> float:
    return sum(numbers)


_OF: dict[str, Callable[[list[float], list[int]], float]] = {"mean": _mean, "sum": _sum, "max": _largest, "min": _smallest}
