"""Values passed to ``add``: the part of each that is kept, and the combination of all shards' (or
evaluation batches') parts. Pure.

Each has a kind: ``mean`` (averaged by weight), ``sum``, or ``count``, an exact sum of integers.
Numbers are added by ``math.fsum``, which rounds once, so their result does not depend on the order.
Tensors are added in the order of shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep._base.errors import ConfigError, UsageError, unknown_name

MEAN, SUM, COUNT = "mean", "sum", "count"
_LARGEST_COUNT = 2**53
"""The largest integer up to which float64 is exact."""

Entry = tuple[str, Any, float]
"""What one shard adds to a result: the kind; the sum of its values, means multiplied by their
weights; the sum of weights."""


Weight = float | Tensor
"""A weight. A tensor is a float64 without dimensions on a device, which is checked later, so that
nothing waits for the device."""


def check_weight(weight: float | Tensor | None, reduction: str | None, call: str) -> Weight | None:
    """Returns the weight passed to ``call``.

    Raises:
        ConfigError: the weight is negative or infinite, the reduction is unknown, or a sum has a
            weight.
    """
    if reduction not in (None, MEAN, SUM):
        raise unknown_name("reduction", str(reduction), (MEAN, SUM))
    if weight is None:
        return None
    if reduction == SUM:
        raise ConfigError(
            f"{call}(weight=..., reduction='sum'): a sum is not weighted. Remove one of them.", code="sum-with-weight"
        )
    if isinstance(weight, Tensor) and not weight.is_cpu:
        return weight.detach().reshape(()).to(torch.float64, copy=True)
    return checked(float(weight), call)


def checked(weight: float, call: str) -> float:
    """Returns the weight passed to ``call``, if it is valid.

    Raises:
        ConfigError: the weight is negative or infinite.
    """
    if not 0 <= weight < math.inf:
        raise ConfigError(
            f"{call}(weight={weight}): a weight must be a count of 0 or more, for example of tokens", code="weight-invalid"
        )
    return weight


def take(name: str, value: Any, reduction: str | None, lengths: Sequence[Weight | None]) -> tuple[str, Any]:
    """Returns the kind of a value, and the value: a Python number, or a copy as a float64 or int64
    tensor on its device. (Tensors without dimensions represent numbers, so that nothing waits for a
    GPU.)

    Args:
        name: the name of the value, for messages.
        value: a number or a tensor.
        reduction: the argument of the script. None: ``mean``, and a vector has one value per
            sample.
        lengths: the number of samples of the shard (or its weight), which is the length of such a
            vector.

    Raises:
        ConfigError: it is neither a number nor a tensor; or a tensor of which ``reduction`` must
            say what it is.
    """
    if hasattr(value, "__array__"):
        value = torch.as_tensor(value)
    if not isinstance(value, Tensor):
        if not hasattr(value, "__float__"):
            raise ConfigError(
                f"batch.add({name}={value!r}): a value must be a number, or a tensor of one value per sample",
                code="value-not-a-number",
            )
        # Integers are added as integers: a float64 is exact only up to 2**53.
        if reduction == SUM:
            return (COUNT, int(value)) if hasattr(value, "__index__") else (SUM, float(value))
        return MEAN, float(value)
    value = value.detach()
    if reduction is None and value.numel() != 1 and not _has_length(value, lengths):
        line = f"batch.add({name}=..., reduction="
        raise ConfigError(
            f"batch.add({name}=...): a tensor of shape {tuple(value.shape)}, with {lengths[0]} samples, is neither a number "
            "nor one value per sample, so its mean would be meaningless. To add such tensors up elementwise (class counts, "
            f"a confusion matrix), write {line}'sum'). To average them, write {line}'mean').",
            code="tensor-without-reduction",
        )
    if reduction == SUM:
        is_count = not value.is_floating_point()
        return (COUNT, value.to(torch.int64, copy=True)) if is_count else (SUM, value.to(torch.float64, copy=True))
    return MEAN, (value.double().mean() if reduction is None else value.to(torch.float64, copy=True))


def _has_length(value: Tensor, lengths: Sequence[Weight | None]) -> bool:
    # Also (n, 1), the result of a layer with one output.
    is_column = value.ndim and value.numel() == len(value)
    return bool(is_column) and any(length is not None and len(value) == float(length) for length in lengths)


def is_on_device(value: Any) -> bool:
    """Returns whether a value or weight is on a device, so that reading it waits."""
    return isinstance(value, Tensor) and not value.is_cpu


def on_cpu(value: Any) -> Any:
    """Returns a result of ``take`` as a Python number, or a tensor on the CPU. Waits for a GPU."""
    if isinstance(value, Tensor):
        return value.cpu() if value.ndim else value.item()
    return value


def all_on_cpu(values: Sequence[Tensor]) -> list[Any]:
    """Returns results of ``take`` on devices as Python numbers, or tensors on the CPU. Waits for
    each device once."""
    by_device: dict[torch.device, list[int]] = {}
    for number, value in enumerate(values):
        by_device.setdefault(value.device, []).append(number)
    found: list[Any] = [None] * len(values)
    for numbers in by_device.values():
        # All are float64 or int64, and go as bits in one copy.
        flat = torch.cat([values[number].reshape(-1).view(torch.float64) for number in numbers]).cpu()
        for number, part in zip(numbers, torch.split(flat, [values[n].numel() for n in numbers]), strict=True):
            value = part.view(values[number].dtype).view(values[number].shape)
            found[number] = value.clone() if value.ndim else value.item()
    return found


def read(values: Sequence[Any]) -> list[Any]:
    """Returns results of ``take``, and weights, as Python numbers, or tensors on the CPU. Waits for
    each device once."""
    on_devices = iter(all_on_cpu([value for value in values if is_on_device(value)]))
    return [next(on_devices) if is_on_device(value) else on_cpu(value) for value in values]


def entry_of(kind: str, value: Any, weight: float) -> Entry:
    """Returns what a value adds to the result."""
    if kind != MEAN:
        return kind, value, 1.0
    if weight:
        return kind, value * weight, weight
    # A value of weight 0 is left out, even if it is NaN (a mean over nothing): NaN * 0 is NaN.
    return kind, torch.zeros_like(value) if isinstance(value, Tensor) else 0.0, 0.0


def is_float(entry: Entry) -> bool:
    """Returns whether a float64 can represent the entry's value."""
    kind, value, _ = entry
    return not isinstance(value, Tensor) and (kind != COUNT or abs(value) <= _LARGEST_COUNT)


@dataclass(frozen=True, slots=True)
class Total:
    """The total of all shards under one name."""

    kind: str
    total: Any
    """The sum: a float, an int, or a tensor of either, on the CPU."""
    weight: float

    @property
    def result(self) -> Any:
        """The mean or sum."""
        if self.kind != MEAN:
            return self.total
        if self.weight:
            return self.total / self.weight
        return torch.full_like(self.total, math.nan) if isinstance(self.total, Tensor) else math.nan


def add_up(name: str, entries: Iterable[Entry]) -> Total:
    """Combines what the shards have added under a name. The result depends on the order of
    ``entries`` for tensors only.

    Raises:
        UsageError: the contributions have different kinds or shapes.
    """
    entries = list(entries)
    kinds, values = {kind for kind, _, _ in entries}, [value for _, value, _ in entries]
    shapes = {tuple(value.shape) if isinstance(value, Tensor) else () for value in values}
    if MEAN in kinds and len(kinds) > 1:
        raise UsageError(
            f"batch.add({name}=...) has reduction='sum' for some shards and not for others", code="reductions-differ"
        )
    if len(shapes) > 1:
        raise UsageError(
            f"batch.add({name}=...): the tensors of some shards have the shapes {' and '.join(map(str, sorted(shapes)))}, so "
            "they cannot be combined elementwise. Give all shards the same shape, as bincount(minlength=num_classes) does. For "
            f"one value per sample, add the sum: {name}.sum().",
            code="shapes-differ",
        )
    # Sums of integers and of floats under one name make a float.
    kind, weight = (kinds.pop() if len(kinds) == 1 else SUM), math.fsum(weight for _, _, weight in entries)
    if isinstance(values[0], Tensor):
        total = values[0].clone()
        for value in values[1:]:
            total = total + value
        return Total(kind, total, weight)
    # fsum rounds once, so the order of the summands does not matter.
    return Total(kind, sum(values) if kind == COUNT else _sum(values), weight)


def combine(entries: Iterable[tuple[str, Entry]]) -> dict[str, Total]:
    """Combines what the shards have added, by name. ``entries``: names and entries, in shard (or
    batch) order.

    Raises:
        UsageError: the contributions under a name have different kinds or shapes.
    """
    by_name: dict[str, list[Entry]] = {}
    for name, entry in entries:
        by_name.setdefault(name, []).append(entry)
    return {name: add_up(name, of_name) for name, of_name in by_name.items()}


def _sum(numbers: list[float]) -> float:
    try:
        return math.fsum(numbers)
    # inf and -inf, or a sum beyond the largest float. Sorted, so that the order of the shards still
    # does not matter.
    except (OverflowError, ValueError):
        return sum(sorted(numbers))
