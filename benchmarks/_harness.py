"""The shared parts of the benchmarks: rounds, paired ratios with bounds, a table, and one line of
JSON at the end.

The machine is rarely quiet, so no single timing is trusted. Contenders alternate in *rounds*: each
runs once per round, in a new random order, so that a slow minute of the machine affects all of
them. A ratio is computed within each round, and the result is the median of these ratios. Its
bounds are order statistics of the ratios, which assume that rounds are independent and nothing
about the distribution of noise.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Timings = dict[str, list[float]]
"""For each contender its figure in every round, in the order of rounds."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio measured in several rounds: the median of the rounds' ratios, and one-sided 95 %
    bounds of it."""

    median: float
    lower95: float
    upper95: float
    coverage: float
    """The confidence that each bound really has: at least 0.95, or less where there were fewer than
    5 rounds."""


def median_bounds(values: Sequence[float], confidence: float = 0.95) -> Ratio:
    """The median of ``values`` and distribution-free bounds of the median they were drawn around.

    Each value lies above the true median or below it like a coin toss, so the k-th smallest of n is
    at least the median with the probability that fewer than k of n tosses are heads.
    """
    if not values:
        raise ValueError("a median of no values: run at least one round")
    ordered = sorted(values)
    total = 2 ** len(ordered)
    below, rank = 0, 0
    for rank in range(1, len(ordered) + 1):
        below += math.comb(len(ordered), rank - 1)
        if below / total >= confidence:
            break
    return Ratio(
        median=statistics.median(ordered),
        lower95=ordered[-rank],
        upper95=ordered[rank - 1],
        coverage=below / total,
    )


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ours divided by theirs, round by round."""
    return median_bounds([mine / other for mine, other in zip(ours, theirs, strict=True)])


def scaled(ratio: Ratio, factor: float) -> Ratio:
    """The ratio times a factor."""
    bounds = (factor * value for value in (ratio.median, ratio.lower95, ratio.upper95))
    return Ratio(**dict(zip(("median", "lower95", "upper95"), bounds, strict=True)), coverage=ratio.coverage)


def interleave(contenders: Mapping[str, Callable[[], float]], rounds: int, say: Callable[[str], None]) -> Timings:
    """Runs every contender once per round, in a new random order for each round. Returns their
    results by name."""
    timings: Timings = {name: [] for name in contenders}
    order = list(contenders)
    shuffle = random.Random(0).shuffle
    for number in range(rounds):
        shuffle(order)
        for name in order:
            timings[name].append(contenders[name]())
        if (number + 1) % max(1, rounds // 4) == 0:
            # of a run that may be cut off
            newest = ", ".join(f"{name} {timings[name][-1]:.4g}" for name in contenders)
            say(f"round {number + 1} of {rounds}: {newest}")
    return timings


# What ran, and where


def find_peers(modules: Mapping[str, str], say: Callable[[str], None]) -> list[str]:
    """Returns the installed peers, and prints the others, which are skipped."""
    found = []
    for name, module in modules.items():
        if importlib.util.find_spec(module) is None:
            say(f"{name} is not installed here ({sys.executable}) and is left out: `make bench` has it")
        else:
            found.append(name)
    return found


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of the distributions that are installed."""
    found = {"python": platform.python_version()}
    for name in ("torch", "torch-lockstep", *distributions):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The machine: cores that may be used, the processor's name, whether it is virtual, and its
    load by now."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return {
        "cpu": facts.get("model name", platform.processor() or platform.machine()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "virtual": "hypervisor" in facts.get("flags", "").split(),
        "system": platform.platform(terse=True),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


# Command line and report


def make_parser(doc: str, *, rounds: int) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has; ``doc`` is shown by --help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, metavar="N", help=f"number of turns of each contender (default: {rounds})")
    parser.add_argument("--quick", action="store_true", help="only check that it runs; the figures have no meaning")
    parser.add_argument("--json", action="store_true", help="print only the last line, as JSON")
    parser.set_defaults(default_rounds=rounds)
    return parser


def resolve_rounds(args: argparse.Namespace, *, quick: int = 2) -> int:
    """How many rounds were asked for."""
    rounds: int = args.rounds if args.rounds is not None else quick if args.quick else args.default_rounds
    if rounds < 1:
        raise SystemExit(f"--rounds {rounds}: at least one round is needed")
    return rounds


def speaker(args: argparse.Namespace) -> Callable[[str], None]:
    """Returns a function that prints progress, or nothing with --json."""
    return (lambda text: None) if args.json else (lambda text: print(text, flush=True))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An aligned Markdown table, so that a run can be kept as it was printed."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths)))  # noqa: B905
        return "| " + " | ".join([first, *others]) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def spread_table(timings: Timings, unit: str, ratios: Mapping[str, tuple[str, Ratio]], digits: int = 1) -> str:
    """Every contender's smallest, median and largest figure, and the ratios that were taken of it.

    Args:
        timings: what was measured, in ``unit``.
        unit: the unit in the header.
        ratios: for a contender, what it was divided by and the ratio.
    """
    rows = []
    for name, values in timings.items():
        cells = [f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values))]
        against, ratio = ratios.get(name, ("", None))
        shown = "" if ratio is None else f"{ratio.median:.3f} [{ratio.lower95:.3f}, {ratio.upper95:.3f}]"
        rows.append([name, *cells, shown, against])
    return table(["contender", f"min {unit}", f"median {unit}", f"max {unit}", "ratio [95 % bounds]", "of"], rows)


def medians(timings: Timings, digits: int = 3) -> dict[str, float]:
    """The median of every contender."""
    return {name: round(statistics.median(values), digits) for name, values in timings.items()}


def ratio_fields(ratio: Ratio, prefix: str = "ratio") -> dict[str, float]:
    """A ratio as fields of the last line."""
    return {
        prefix: round(ratio.median, 4),
        f"{prefix}_lower95": round(ratio.lower95, 4),
        f"{prefix}_upper95": round(ratio.upper95, 4),
    }


def circumstances(
    args: argparse.Namespace, rounds: int, machine: Mapping[str, Any], distributions: Iterable[str] = ()
) -> dict[str, Any]:
    """How and where a result came about, as fields of the last line. ``machine``: as it was at the
    start."""
    return {"rounds": rounds, "quick": args.quick, "machine": machine, "versions": versions(distributions)}


def finish(result: Mapping[str, Any]) -> None:
    """Print the last line: one JSON object."""
    print(json.dumps(result), flush=True)
