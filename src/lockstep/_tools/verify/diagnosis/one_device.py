"""Whether V shards have the same gradient as one device, which does not divide the batch. Pure.

Compares the gradients of the first batch up to rounding, without dropout and with BatchNorm in
evaluation mode, since these are meant to depend on the shard (see ``diagnosis.first_gradient``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep._tools.verify.trace.lines import number
from lockstep._tools.verify.trace.traced_run import Line, TracedRun

_TOLERANCE = 1e-4
_ON_GPUS = 5e-3
"""The tolerance on GPUs, which may multiply in TF32."""
_NARROW = 5e-2
"""The tolerance for 16-bit weights or operations."""
_NEAR = 0.2
"""The relative error of a factor of V, where shards differ in size or random numbers are drawn."""


@dataclass(frozen=True, kw_only=True)
class OneDevice:
    """How the gradient of V shards compares with that of one device."""

    status: str
    """``same``; ``sum`` (the gradient on one device is V times as large); ``differs``; ``skipped``
    (not comparable); or ``interrupted``."""
    shards: int
    factor: float | None = None
    """The factor by which the gradient of V shards is closest to the gradient on one device."""
    error: float | None = None
    """The norm of the difference of both, relative to the gradient on one device."""
    reason: str | None = None
    """The reason why they are not comparable; None: they are."""

    @property
    def is_bad(self) -> bool:
        """Whether V changes what is learned."""
        return self.status in ("sum", "differs")


def against_one_device(single: TracedRun, many: TracedRun) -> OneDevice:
    """Compare a run with one shard and a run with V shards, each on one process."""
    shards = many.start["shards"]
    first, second = single.first_gradient, many.first_gradient
    if first is None or second is None or not first["values"] or first["values"].keys() != second["values"].keys():
        return OneDevice(status="skipped", shards=shards, reason="the first step computed no gradient")
    if _samples(single) != _samples(many):
        return OneDevice(status="skipped", shards=shards, reason="the first batch contains other samples")
    mine, theirs = list(_numbers(first)), list(_numbers(second))
    norm, other_norm = math.hypot(*mine), math.hypot(*theirs)
    if not (math.isfinite(norm) and math.isfinite(other_norm) and norm > 0 and other_norm > 0):
        return OneDevice(status="skipped", shards=shards, reason="the gradient of the first batch is 0, or not finite")
    # The factor f that minimizes |mine - f * theirs|: the projection of one gradient on the other.
    factor = math.fsum(a * b for a, b in zip(mine, theirs, strict=True)) / other_norm**2
    error = _distance(mine, theirs, 1.0) / norm
    figures = {"shards": shards, "factor": factor, "error": error}
    if error <= _tolerance(many.start):
        return OneDevice(status="same", **figures)
    is_random = first["draws"] or second["draws"] or first["rows"] != second["rows"]
    if is_random:
        # Other random numbers give other gradients, so only a factor of V can be concluded: it
        # shows in norms and losses even if the directions differ.
        is_sum = _is_near(norm / other_norm, shards) and _is_near(_loss(single) / _loss(many), shards)
    else:
        is_sum = _is_near(factor, shards) and _distance(mine, theirs, factor) / norm <= _NEAR
    if is_sum:
        return OneDevice(status="sum", **figures)
    if is_random:
        drawn = "random numbers are drawn" if first["draws"] or second["draws"] else "samples are augmented or padded"
        reason = f"{drawn} for each shard, so the first batch is not the same"
        return OneDevice(status="skipped", reason=reason, **figures)
    return OneDevice(status="differs", **figures)


def _tolerance(start: Line) -> float:
    if start["precision"] != "32-true":
        return _NARROW
    return _TOLERANCE if start["device"] == "cpu" else _ON_GPUS


def _is_near(factor: float, shards: int) -> bool:
    return shards > 1 and abs(factor / shards - 1) <= _NEAR


def _numbers(gradient: Line) -> Iterator[float]:
    for name in sorted(gradient["values"]):
        yield from gradient["values"][name]


def _distance(mine: list[float], theirs: list[float], factor: float) -> float:
    return math.sqrt(math.fsum((a - factor * b) ** 2 for a, b in zip(mine, theirs, strict=True)))


def _first_shards(run: TracedRun) -> list[Line]:
    return [owners[0][1] for key, owners in run.shards_of(min(run.steps)) if key.phase == 0]


def _samples(run: TracedRun) -> list[str]:
    return sorted(repr(sample) for line in _first_shards(run) for batch in line["batches"] for sample in batch["samples"])


def _loss(run: TracedRun) -> float:
    """The mean loss over the shards."""
    losses = [number(loss) for line in _first_shards(run) for loss in line["losses"]]
    return math.fsum(losses) / len(losses) if losses and math.fsum(losses) else math.nan
