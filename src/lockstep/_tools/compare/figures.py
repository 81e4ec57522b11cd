"""From a run's events to the figures of a row. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep._base.errors import UsageError
from lockstep._events.format import number_in
from lockstep._events.measure.split import PARTS, shares_of
from lockstep._tools.compare.confidence import Interval, interval_of, middle

Split = dict[str, float]
"""The seconds of each part."""
_ACCURACY_NAMES = ("accuracy", "top1")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one run measured, from inside its workers."""

    num_processes: int
    device: str
    device_name: str | None
    num_cores: int
    num_epochs: int
    samples_per_epoch: float
    steady_s: float
    """Time in which the figures were measured: training without warm-up, over all epochs."""
    includes_warm_up: bool
    """Whether every pass was so short that it was all warm-up: the figures are then of whole
    passes."""
    samples_per_s: float
    epoch_s: float
    """Seconds an epoch of training takes at the steady pace; evaluation and start-up are not in
    it."""
    cpu_utilisation: float | None
    """Per cent of all cores of the machine that the processes and their loader workers kept
    busy."""
    gpu_utilisation: float | None
    """Per cent, mean over the processes' GPUs."""
    gpu_utilisation_by_rank: tuple[float | None, ...] | None
    peak_rss_bytes: int | None
    """Sum over the processes of the peak of each."""
    peak_gpu_bytes: int | None
    """Sum over the processes of the peak of each; None without a GPU."""
    loss: float | None
    loss_from: str | None
    """``evaluation`` (the last one) or ``training`` (mean of the last epoch's steps)."""
    accuracy: float | None
    accuracy_from: str | None
    shares: Mapping[str, float] | None = None
    """The share of each part of ``measure.split.PARTS`` in the time of all ranks."""
    num_shards: int | None = None
    """V of the run; None: not in its event log."""

    @property
    def utilisation(self) -> float | None:
        """The utilization of the GPUs if they do the work, otherwise of the cores; in per cent."""
        return self.gpu_utilisation if self.device != "cpu" else self.cpu_utilisation

    @property
    def peak_bytes(self) -> int | None:
        """The peak memory of the GPUs if they do the work, otherwise of the machine."""
        return self.peak_gpu_bytes if self.device != "cpu" else self.peak_rss_bytes


def figures_of(events: Iterable[Mapping[str, Any]]) -> Figures:
    """The figures of one run.

    Raises:
        UsageError: the run did not finish one pass over a training loader, so there is nothing to
            measure.
    """
    listed = list(events)
    start = next((event for event in listed if event.get("event") == "start"), {})
    passes = [event for event in listed if event.get("event") == "epoch" and event.get("num_samples")]
    if not start or not passes:
        raise UsageError(
            "the run finished no pass over a training loader, so there is nothing to measure. Loop over a loader from "
            "team.prepare() to its end.",
            code="no-pass",
        )
    num_epochs = len({event.get("epoch") for event in passes})
    samples_per_epoch = sum(event["num_samples"] for event in passes) / num_epochs
    samples, seconds, includes_warm_up = pace_of(passes)
    cpu_s = None if includes_warm_up else _total_cpu_s(passes)
    if not seconds:
        raise UsageError("the run's epochs took no time, so lockstep did not write this event log", code="no-time")
    num_cores = int(start.get("num_cores") or 1)
    by_rank = _gpu_utilisation_by_rank(passes)
    loss, loss_from = _final(listed, ("loss",))
    accuracy, accuracy_from = _final(listed, _ACCURACY_NAMES)
    splits, _ = splits_of(passes)
    return Figures(
        num_processes=int(start.get("world_size") or 1),
        num_shards=start.get("shards"),
        device=str(start.get("device") or "cpu"),
        device_name=start.get("device_name"),
        num_cores=num_cores,
        num_epochs=num_epochs,
        samples_per_epoch=samples_per_epoch,
        steady_s=seconds,
        includes_warm_up=includes_warm_up,
        samples_per_s=samples / seconds,
        epoch_s=samples_per_epoch * seconds / samples,
        cpu_utilisation=None if cpu_s is None else 100 * cpu_s / (seconds * num_cores),
        gpu_utilisation=_mean(by_rank or ()),
        gpu_utilisation_by_rank=by_rank,
        peak_rss_bytes=_sum_of_peaks(passes, "peak_rss_bytes"),
        peak_gpu_bytes=_sum_of_peaks(passes, "peak_gpu_bytes"),
        loss=loss,
        loss_from=loss_from,
        accuracy=accuracy,
        accuracy_from=accuracy_from,
        shares=shares_of(splits) if splits else None,
    )


def pace_of(passes: Sequence[Mapping[str, Any]]) -> tuple[float, float, bool]:
    """Returns the samples and seconds of steady training, and False; if all of it was warm-up, the
    samples and seconds of whole passes, and True. Zeros if no time was recorded."""
    for names, is_whole in ((("steady_samples", "steady_s"), False), (("num_samples", "wall_s"), True)):
        samples, seconds = (sum(number_in(event, name) or 0.0 for event in passes) for name in names)
        if samples and seconds:
            return samples, seconds, is_whole
    return 0.0, 0.0, True


def pooled(rounds: Sequence[Figures]) -> Figures:
    """Returns the figures of a row from the figures of its rounds: for speed the geometric mean,
    for memory the peak. Values are taken from the first round (``Relation`` shows whether other
    rounds differ), and so is what does not differ."""
    first = rounds[0]
    if len(rounds) == 1:
        return first
    speed = middle([figures.samples_per_s for figures in rounds])
    by_rank = [figures.gpu_utilisation_by_rank for figures in rounds if figures.gpu_utilisation_by_rank]
    shares = [figures.shares for figures in rounds if figures.shares]
    return dataclasses.replace(
        first,
        steady_s=sum(figures.steady_s for figures in rounds),
        includes_warm_up=any(figures.includes_warm_up for figures in rounds),
        samples_per_s=speed,
        epoch_s=first.samples_per_epoch / speed,
        cpu_utilisation=_mean(figures.cpu_utilisation for figures in rounds),
        gpu_utilisation=_mean(figures.gpu_utilisation for figures in rounds),
        gpu_utilisation_by_rank=tuple(map(_mean, zip(*by_rank, strict=False))) if by_rank else None,
        peak_rss_bytes=max(figures.peak_rss_bytes or 0 for figures in rounds) or None,
        peak_gpu_bytes=max(figures.peak_gpu_bytes or 0 for figures in rounds) or None,
        shares={part: statistics.fmean(share.get(part, 0.0) for share in shares) for part in shares[0]} if shares else None,
    )


@dataclass(frozen=True, kw_only=True)
class Relation:
    """How a row compares with the baseline, ``single``."""

    speed_up: float
    """Samples a second, divided by the baseline's: the geometric mean over the rounds."""
    efficiency: float
    """Speed-up divided by the number of processes, in per cent."""
    interval: Interval | None = None
    """The confidence interval of the speed-up; None: fewer than two rounds have both rows."""
    loss_difference: float | None
    """Final loss less the baseline's, the largest of any two rounds; 0 is equality of every bit
    that was logged, in all."""
    accuracy_difference: float | None

    @property
    def is_noise(self) -> bool:
        """Whether the measurements do not rule out that both are equally fast."""
        return self.interval is not None and self.interval.has(1.0)


def relate(rounds: Mapping[int, Figures], baseline: Mapping[int, Figures]) -> Relation:
    """How a row compares with the baseline, by the figures of each round. Values are compared only
    if both are from evaluation, or from training."""

    def difference(name: str) -> float | None:
        pairs = [
            (getattr(figures, name), getattr(reference, name))
            for figures, reference in itertools.product(rounds.values(), baseline.values())
            if getattr(figures, f"{name}_from") == getattr(reference, f"{name}_from")
        ]
        differences = [float(value - reference) for value, reference in pairs if value is not None and reference is not None]
        return max(differences, key=abs, default=None)

    ratios = [rounds[number].samples_per_s / baseline[number].samples_per_s for number in rounds if number in baseline]
    if not ratios:  # the one was interrupted in the only round that the other has
        ratios = [pooled([*rounds.values()]).samples_per_s / pooled([*baseline.values()]).samples_per_s]
    speed_up = middle(ratios)
    return Relation(
        speed_up=speed_up,
        efficiency=100 * speed_up / next(iter(rounds.values())).num_processes,
        interval=interval_of(ratios),
        loss_difference=difference("loss"),
        accuracy_difference=difference("accuracy"),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _total_cpu_s(passes: Sequence[Mapping[str, Any]]) -> float | None:
    by_rank = [event.get("cpu_s") or [None] for event in passes]
    if any(value is None for values in by_rank for value in values):
        return None
    return float(sum(value for values in by_rank for value in values))


def _columns(passes: Sequence[Mapping[str, Any]], name: str) -> list[list[Any]]:
    """For each rank, the values of one field in every pass that could be read."""
    listed = [event[name] for event in passes if event.get(name)]
    return [[value for value in values if value is not None] for values in zip(*listed, strict=False)]


def _sum_of_peaks(passes: Sequence[Mapping[str, Any]], name: str) -> int | None:
    columns = _columns(passes, name)
    return int(sum(max(values) for values in columns)) if columns and all(columns) else None


def _gpu_utilisation_by_rank(passes: Sequence[Mapping[str, Any]]) -> tuple[float | None, ...] | None:
    columns = _columns(passes, "gpu_utilisation")
    if not any(columns):
        return None
    return tuple(_mean(values) for values in columns)


def _final(events: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[float | None, str | None]:
    """A value at the end of the run, under the first name that is there, and where it comes from.
    One that is not finite is None, and no other takes its place."""
    evaluations = [event for event in events if event.get("event") == "evaluate"]
    steps = [event for event in events if event.get("event") == "step"]
    last_epoch = [event for event in steps if event.get("epoch") == steps[-1].get("epoch")]
    for source, chosen in (("evaluation", evaluations[-1:]), ("training", last_epoch)):
        for name in names:
            found = [number_in(values, name) for event in chosen if name in (values := event.get("values") or {})]
            if found:
                return None if None in found else _mean(found), source
    return None, None


def splits_of(passes: Iterable[Mapping[str, Any]]) -> tuple[list[Split], int]:
    """The seconds of each part by rank, and the steps, of all passes at the last number of
    processes; both empty: none.

    Args:
        passes: the event log's events ``epoch``.
    """
    timed = [event for event in passes if _is_split(event.get("split")) and number_in(event, "num_steps")]
    if not timed:
        return [], 0
    size = len(timed[-1]["split"])
    alike = [event for event in timed if len(event["split"]) == size]
    splits = [
        {part: math.fsum(number_in(event["split"][rank], part) or 0.0 for event in alike) for part in PARTS}
        for rank in range(size)
    ]
    return splits, sum(int(event["num_steps"]) for event in alike)


def _is_split(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(split, Mapping) for split in value)
