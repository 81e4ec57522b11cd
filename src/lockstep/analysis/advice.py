"""What a reader must know before believing a comparison's figures. Pure."""

from __future__ import annotations

from lockstep.analysis.comparison import Comparison
from lockstep.analysis.figures import Figures
from lockstep.machine.sizes import counted

_SHORT_S = 2.0
_SLOW = 1.5


def notes_on(comparison: Comparison) -> list[str]:
    """Sentences to print under the table, most important first; none if nothing stands in the way."""
    measured = [(result.row, result.figures) for result in comparison.rows if result.figures is not None]
    all_figures = [figures for _, figures in measured]
    notes = [
        *_not_the_same_twice(comparison),
        *_too_few_cores(comparison, all_figures),
        *_short_runs(comparison),
        *_slow_16_bit(comparison),
    ]
    if measured and comparison.baseline is None:
        notes.append("No `single` row ran: without it there is no speed-up, and no difference, to show.")
    machine = comparison.machine
    if machine.load > 0.5 * machine.num_cores:
        notes.append(
            f"Before the first row, other work already kept {machine.load:.1f} of {machine.num_cores} cores busy: "
            "the timings are those of a shared machine."
        )
    return notes


def _not_the_same_twice(comparison: Comparison) -> list[str]:
    changing = [
        result.row.label for result in comparison.rows if len({figures.loss for figures in result.measured.values()}) > 1
    ]
    if not changing:
        return []
    return [
        f"Rounds of the same row ended with different losses: {', '.join(changing)}. Something in the script is not the same "
        "twice; lockstep verify finds what."
    ]


def _too_few_cores(comparison: Comparison, all_figures: list[Figures]) -> list[str]:
    if not all_figures:
        return []
    cores, threads = min(figures.num_cores for figures in all_figures), comparison.threads
    most = max(figures.num_processes for figures in all_figures)
    on_cpu = all(figures.device != "cuda" for figures in all_figures)
    if most > 1 and cores == 1:
        return [
            f"One core for all {most} processes: no speed-up can be expected, whatever the GPUs. (Measured like this, "
            "CIFAR-10 on one GPU took 577 s in a published comparison, and DDP on four GPUs 1439 s.)"
        ]
    if on_cpu and most * threads > cores:
        return [
            f"{most} processes of {counted(threads, 'thread')} share {cores} cores: rows with more processes than "
            "cores cannot be faster than those with as many, and show how well the method works, not what it gains."
        ]
    if on_cpu and threads < cores:
        return [
            f"Every process, also that of `single`, runs {counted(threads, 'thread')}, on {cores} cores: speed-up is "
            f"against one process with as many threads. `--methods single --threads {cores}` shows what `single` gains "
            "from all cores."
        ]
    if not on_cpu and most > cores:
        return [
            f"{most} processes share {cores} cores: each needs one of its own to feed its GPU, and its loader workers more."
        ]
    return []


def _short_runs(comparison: Comparison) -> list[str]:
    notes = []
    num_measured = sum(result.figures is not None for result in comparison.rows)
    short = [
        result.row.label
        for result in comparison.rows
        if result.figures is not None and not result.figures.includes_warm_up and result.figures.steady_s < _SHORT_S
    ]
    cold = [result.row.label for result in comparison.rows if result.figures and result.figures.includes_warm_up]
    if cold:
        notes.append(f"All training was warm-up, and these figures include it: {', '.join(cold)}. Train for longer.")
    if short:
        which = "every row" if len(short) == num_measured else ", ".join(short)
        notes.append(
            f"Less than {_SHORT_S:.0f} s of steady training was measured for {which}: "
            "expect some per cent of noise, more --rounds, or train for longer."
        )
    return notes


def _slow_16_bit(comparison: Comparison) -> list[str]:
    """Says that it is the machine's doing when 16-bit formats are slower than float32 on a CPU."""
    pace = {
        (result.row.method.strategy, result.row.num_processes): result.figures.samples_per_s
        for result in comparison.rows
        if result.figures is not None and result.row.method.precision == "32-true"
    }
    factors = [
        (pace[key] / result.figures.samples_per_s, result.row.method.precision)
        for result in comparison.rows
        if result.figures is not None
        and result.figures.device != "cuda"
        and result.row.method.precision != "32-true"
        and (key := (result.row.method.strategy, result.row.num_processes)) in pace
    ]
    slow = list(dict.fromkeys(precision for factor, precision in factors if factor >= _SLOW))
    if not slow:
        return []
    return [
        f"{', '.join(slow)}: up to {max(factors)[0]:.1f} times slower than 32-true here, since this processor does it in "
        "software. On a GPU that has such a format, it is the faster one."
    ]
