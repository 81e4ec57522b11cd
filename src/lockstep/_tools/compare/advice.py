"""Warns about what a reader must know before relying on a comparison's figures. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep._tools.compare.comparison import Comparison
from lockstep._world.machine.sizes import counted

_SHORT_S = 2.0


def notes_on(comparison: Comparison) -> Iterator[str]:
    """Yields sentences to print under the table, most important first; none if there is no doubt
    about the figures."""
    yield from _different_losses(comparison)
    yield from _too_few_cores(comparison)
    yield from _short_runs(comparison)
    yield from _training_values(comparison)
    if comparison.measured and comparison.baseline is None:
        yield "No `single` row ran, so there is no speed-up and no difference to show."


def _different_losses(comparison: Comparison) -> Iterator[str]:
    changing = [
        result.row.label for result in comparison.rows if len({figures.loss for figures in result.measured.values()}) > 1
    ]
    if changing:
        yield (
            f"Rounds of the same row have different final losses: {', '.join(changing)}. The script is not deterministic; "
            "lockstep verify finds the cause."
        )


def _too_few_cores(comparison: Comparison) -> Iterator[str]:
    measured = [figures for _, figures in comparison.measured]
    if not measured:
        return
    cores, threads = min(figures.num_cores for figures in measured), comparison.threads
    most = max(figures.num_processes for figures in measured)
    on_cpu = all(figures.device == "cpu" for figures in measured)
    if most > 1 and cores == 1:
        yield f"One core for all {most} processes: expect no speed-up, with any GPUs."
    elif on_cpu and most * threads > cores:
        yield (
            f"{most} processes with {counted(threads, 'thread')} each share {cores} cores: rows with more processes than "
            "cores show whether the method works, not how much faster it is."
        )


def _short_runs(comparison: Comparison) -> Iterator[str]:
    measured = comparison.measured
    cold = [result.row.label for result, figures in measured if figures.includes_warm_up]
    short = [
        result.row.label for result, figures in measured if not figures.includes_warm_up and figures.steady_s < _SHORT_S
    ]
    if cold:
        yield f"All training was warm-up, which these figures include: {', '.join(cold)}. Train for longer."
    if short:
        which = "every row" if len(short) == len(measured) else ", ".join(short)
        yield (
            f"Less than {_SHORT_S:.0f} s of steady training was measured for {which}: expect a few percent of noise. "
            "Use more --rounds or longer training."
        )


def _training_values(comparison: Comparison) -> Iterator[str]:
    sources = [(figures.loss_from, figures.accuracy_from) for _, figures in comparison.measured]
    trained = [
        name for name, values in zip(("loss", "accuracy"), zip(*sources, strict=True), strict=False) if "training" in values
    ]
    if trained:
        yield f"No evaluation measured {' or '.join(trained)}; the last epoch's mean is shown."
