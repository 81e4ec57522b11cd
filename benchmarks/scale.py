"""Measures the cost of more processes on one machine: `lockstep run` compared with `torchrun` and
DistributedDataParallel.

    python benchmarks/scale.py --world-sizes 2,4,8,16,32,64,128   powers of two, at most 128
    python benchmarks/scale.py --hosts 1024,4096                  launchers that meet, instead

Each round runs both commands with W processes of one thread to their end, in a new random order.
They train a tiny model on a global batch of 128, so a step is mostly communication between
processes. There are two figures:

  start   seconds from the command until rank 0 has joined the others (for DDP: until a barrier of
          all processes has passed)
  step    milliseconds per step, the median of a run, on rank 0

W processes share the machine's cores, so both grow at least in proportion to W once there are more
processes than cores. The growth is an exponent of W, fitted to the medians: 1 is proportional to W,
and 2 quadratic.

  ratio              lockstep's step / DDP's step, with the largest number of processes with which
                     DDP ran: lower is better. ratio_start: the same for start
  growth             fitted exponents of start and step, of both
  goal_met           whether lockstep's exponents are at most DDP's exponents, or 1.2

--hosts lets the launchers of so many hosts meet, with numbers (--node-rank), at a store on
loopback: as threads of one process per core; the first host has a separate process. No workers
are started. The time that PyTorch's store needs alone is printed for comparison: each host
connects, sets one key, and gets another one. A size that takes longer than 60 s has failed."""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import _harness as harness
import _meeting
from _crew import WORKERS, clean_environ

GOAL = 1.2
OURS, PEER = "lockstep", "torchrun"
_TIMEOUT_S = 1200
_MEETS_IN_S = {1024: 3.0, 4096: 10.0}


def command(name: str, nproc: int) -> list[str]:
    """A contender's command line, up to the script's arguments."""
    started_by = [str(Path(sys.executable).with_name(name)), *(["run"] if name == OURS else [])]
    return [*started_by, "--nproc-per-node", str(nproc), str(WORKERS / f"many_{name}.py")]


def run_once(name: str, nproc: int, steps: int) -> tuple[float, float]:
    """Seconds until rank 0 has joined, and of a step."""
    with tempfile.TemporaryDirectory() as scratch:
        note = Path(scratch) / "note"
        began = time.monotonic()
        done = subprocess.run(
            [*command(name, nproc), str(note), str(steps)],
            cwd=scratch,
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode or not note.exists():
            raise RunError(name, f"with {nproc} processes: status {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        ready, step_s = map(float, note.read_text(encoding="utf-8").split())
    return ready - began, step_s


class RunError(Exception):
    """A contender's run failed: 128 processes of torchrun need more than 24 GB, say."""

    def __init__(self, name: str, how: str) -> None:
        super().__init__(f"{name} failed {how}")
        self.name = name


def turn(name: str, nproc: int, steps: int, step_ms: list[float]) -> Callable[[], float]:
    """A contender's turn: its start in seconds. The time of a step is appended to ``step_ms``."""

    def run() -> float:
        start_s, step_s = run_once(name, nproc, steps)
        step_ms.append(1e3 * step_s)
        return start_s

    return run


def growth(by_size: Mapping[int, float]) -> float:
    """The exponent of W in a power law through these figures."""
    logs = [(math.log(size), math.log(figure)) for size, figure in by_size.items()]
    slope, _ = statistics.linear_regression(*zip(*logs, strict=True))
    return round(slope, 3)


def meetings(sizes: Sequence[int], args: argparse.Namespace) -> None:
    """Let launchers meet, and print what it took."""
    say, rounds = harness.speaker(args), harness.resolve_rounds(args, quick=1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if max(sizes) * 3 + 200 > most:
        raise SystemExit(f"--hosts {max(sizes)}: too many connections for {most} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    machine = harness.machine()
    rows, medians = [], {}
    for size in sizes:
        found = {how: _rounds(size, how, rounds) for how in (_meeting.LOCKSTEP, _meeting.STORE)}
        medians[size] = {how: statistics.median(one.wall_s for one in each) for how, each in found.items() if each}
        cells = [f"{medians[size].get(how, math.inf):.2f}" for how in found]
        ours = found[_meeting.LOCKSTEP]
        cells += [f"{statistics.median(figures(one) for one in ours):.2f}" if ours else "-" for figures in _FIGURES]
        rows.append([str(size), *cells])
        say(f"{size} hosts: {', '.join(cells)}")
    say(harness.table(["hosts", "median s", "bare store s", "processor s", "requests a host"], rows))
    ours_s = {size: medians[size].get(_meeting.LOCKSTEP) for size in medians}
    harness.finish(
        {
            "benchmark": "meeting",
            "better": "lower",
            "medians_s": ours_s,
            "bare_store_s": {size: medians[size].get(_meeting.STORE) for size in medians},
            "goals_s": _MEETS_IN_S,
            "goal_met": all((ours_s[size] or math.inf) <= limit for size, limit in _MEETS_IN_S.items() if size in ours_s),
            **harness.circumstances(args, rounds, machine),
        }
    )


_FIGURES: Sequence[Callable[[_meeting.Meeting], float]] = (lambda one: one.cpu_s, lambda one: one.requests)


def _rounds(size: int, how: str, rounds: int) -> list[_meeting.Meeting]:
    """Returns the meetings; none if one of them failed."""
    found = []
    for _ in range(rounds):
        met = _meeting.meet(size, how)
        if met is None:
            return []
        found.append(met)
    return found


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=5)
    parser.add_argument("--world-sizes", metavar="W,W", help="numbers of processes (default: 2,4,8,16,32,64,128)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a run (default: 50)")
    parser.add_argument("--hosts", metavar="N,N", help="let so many launchers meet instead")
    args = parser.parse_args()
    if args.hosts:
        meetings([int(number) for number in args.hosts.split(",")], args)
        return
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    sizes = [int(number) for number in (args.world_sizes or ("1,2" if args.quick else "2,4,8,16,32,64,128")).split(",")]
    if len(sizes) < 2 or any(128 % size for size in sizes):
        raise SystemExit(f"--world-sizes {args.world_sizes}: give at least two powers of two, at most 128")
    steps = args.steps or (5 if args.quick else 50)
    machine = harness.machine()
    starts: dict[int, harness.Timings] = {}
    taken: dict[int, harness.Timings] = {}
    names = [PEER, OURS]
    for size in sizes:
        say(f"{size} processes, {rounds} rounds of {steps} steps")
        step_ms: harness.Timings = {name: [] for name in names}
        try:
            starts[size] = harness.interleave({name: turn(name, size, steps, step_ms[name]) for name in names}, rounds, say)
        except RunError as error:
            if error.name == OURS or len(taken) < 2:
                raise SystemExit(str(error)) from None
            say(f"{error}\n{PEER} is left out from {size} processes on")
            names, step_ms = [OURS], {OURS: []}
            starts[size] = harness.interleave({OURS: turn(OURS, size, steps, step_ms[OURS])}, rounds, say)
        taken[size] = step_ms
        say(
            ", ".join(
                f"{name}: start {harness.medians(starts[size])[name]} s, step {harness.medians(step_ms)[name]} ms"
                for name in names
            )
        )
    report(args, rounds, steps, starts, taken, machine)


def report(
    args: argparse.Namespace,
    rounds: int,
    steps: int,
    starts: Mapping[int, harness.Timings],
    taken: Mapping[int, harness.Timings],
    machine: dict[str, object],
) -> None:
    """A table for each figure, and the last line."""
    say = harness.speaker(args)
    for title, unit, by_size in (("start", "s", starts), ("step", "ms", taken)):
        rows = []
        for size, timings in by_size.items():
            ratio = harness.paired_ratio(timings[OURS], timings[PEER]) if PEER in timings else None
            middle = [f"{statistics.median(timings[name]):.2f}" if name in timings else "-" for name in (OURS, PEER)]
            beside = f"{ratio.median:.3f} [{ratio.lower95:.3f}, {ratio.upper95:.3f}]" if ratio else "-"
            rows.append([str(size), *middle, beside])
        say(f"\n{title}, {unit}:\n{harness.table(['processes', OURS, PEER, 'ratio [95 % bounds]'], rows)}")
    fitted = {
        f"{figure} of {name}": growth(
            {size: statistics.median(timings[name]) for size, timings in by_size.items() if name in timings}
        )
        for figure, by_size in (("start", starts), ("step", taken))
        for name in (OURS, PEER)
    }
    most = max(size for size, timings in taken.items() if PEER in timings)
    ratio, ratio_start = (harness.paired_ratio(by_size[most][OURS], by_size[most][PEER]) for by_size in (taken, starts))
    harness.finish(
        {
            "benchmark": "scale",
            "goal": GOAL,
            "better": "lower",
            **harness.ratio_fields(ratio),
            **harness.ratio_fields(ratio_start, "ratio_start"),
            "growth": fitted,
            "goal_met": all(fitted[f"{of} of {OURS}"] <= max(GOAL, fitted[f"{of} of {PEER}"]) for of in ("start", "step")),
            "medians_ms": harness.medians(taken[most]),
            "medians_start_s": harness.medians(starts[most]),
            "by_size": {size: [harness.medians(starts[size]), harness.medians(taken[size])] for size in taken},
            "coverage": round(ratio.coverage, 4),
            "steps": steps,
            **harness.circumstances(args, rounds, machine),
        }
    )


if __name__ == "__main__":
    main()
