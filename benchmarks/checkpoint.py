"""Measures how long a checkpoint delays training: lockstep's, compared with `torch.save` and
`torch.distributed.checkpoint.async_save`.

    python benchmarks/checkpoint.py               100M parameters with Adam (1.2 GB), one process
    python benchmarks/checkpoint.py --nproc 2     two processes that train together
    python benchmarks/checkpoint.py --dir /data   write to that disk instead of the disk of build/

All train the same transformer on the same short batch. A turn is some undisturbed steps, a
checkpoint, and the steps during which it is written. Before the next turn, the benchmark waits
for the disk. The *delay* is the time of all steps from the moment of the checkpoint until it is
written, less the time of as many undisturbed steps of the same turn. So it includes the copy, and
the slowdown of training while the file is written in the background. The first checkpoint, which
must allocate memory, is reported separately. So are the *pause*, during which training stops, and
the cores that other programs used meanwhile: with more than a tenth of a core, the figures are
unreliable.

  lockstep      checkpoint_every=; writes, flushes, checks the written file, and renames
  torch.save    model and optimizer, between two steps; not flushed to the disk
  async_save    with the settings that were best here (--async-save shows the others): flushed,
                not checked

The first file of each is loaded again and compared with the values at that moment.

  ratio        delay by lockstep / by torch.save: lower is better
  ratio_async  delay by lockstep / by async_save
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _harness as harness
from _crew import Crew, Crews

GOAL, GOAL_ASYNC = 0.1, 1.0
OURS, PEER, ASYNC = "lockstep", "torch.save", "async_save"
HOWS = ("plain", "cached", "overlapped", "process")
BEST_HOW = "overlapped"
_LEAST_S = 1e-3
"""The smallest delay that can be measured, in seconds."""

Notes = list[dict[str, Any]]


def read_notes(directory: Path) -> Notes:
    return [json.loads(line) for line in (directory / "held.jsonl").read_text(encoding="utf-8").splitlines()]


def measure(args: argparse.Namespace, rounds: int, say: Callable[[str], None]) -> tuple[harness.Timings, dict[str, Notes]]:
    """Returns the delays by each contender's checkpoints in seconds, and the notes on each
    checkpoint, from the first."""
    hows = HOWS if args.async_save == "all" else (args.async_save,)
    contenders = {OURS: OURS, PEER: PEER, **{name_of(how, args): f"{ASYNC}:{how}" for how in hows}}
    args.dir.mkdir(parents=True, exist_ok=True)
    width, layers = (64, 2) if args.quick else (1024, 8)
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=args.dir) as scratch, Crews(say) as crews:
        places = {name: Path(scratch) / str(number) for number, name in enumerate(contenders)}

        def start(name: str) -> Callable[[], float]:
            places[name].mkdir()
            options = {
                "width": width,
                "layers": layers,
                "threads": args.threads,
                "before": args.before,
                "after": args.after,
                "dir": places[name],
            }
            told = [text for key, value in options.items() for text in (f"--{key}", str(value))]
            crew = crews.start(Crew(name, "saving.py", [contenders[name], *told], args.nproc))
            crew.wait_ready()  # one after another: their first checkpoint is measured too
            first = read_notes(places[name])[0]
            say(f"{name}: the first checkpoint delayed training by {first['held_s']:.2f} s")
            if not first["sound"]:
                raise SystemExit(f"{name}: what was written is not what was to be saved")

            def turn() -> float:
                crew.turn()
                return float(read_notes(places[name])[-1]["held_s"])

            return turn

        turns = {name: start(name) for name in contenders}
        timings = harness.interleave(turns, rounds, say)
        return timings, {name: read_notes(places[name]) for name in contenders}


def name_of(how: str, args: argparse.Namespace) -> str:
    return f"{ASYNC}, {how}" if args.async_save == "all" else ASYNC


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=8)
    parser.add_argument("--nproc", type=int, default=1, metavar="W", help="number of processes (default: 1)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads per process (default: 1)")
    parser.add_argument("--dir", type=Path, default=Path("build"), help="directory of the checkpoints (default: build)")
    parser.add_argument("--before", type=int, default=7, metavar="N", help="undisturbed steps per turn (default: 7)")
    parser.add_argument("--after", type=int, default=16, metavar="N", help="steps after the checkpoint begins (default: 16)")
    parser.add_argument("--async-save", choices=[*HOWS, "all"], default=BEST_HOW, help=f"its settings (default: {BEST_HOW})")
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    machine = harness.machine()
    say(f"{args.nproc} processes of {args.threads} threads, {rounds} rounds of {args.before} + {args.after} steps")
    timings, notes = measure(args, rounds, say)
    report(args, rounds, timings, notes, machine)


def report(
    args: argparse.Namespace, rounds: int, timings: harness.Timings, notes: dict[str, Notes], machine: dict[str, object]
) -> None:
    """The tables and the last line."""
    say = harness.speaker(args)
    ratios = {name: ratio_of(timings[OURS], timings[name]) for name in timings if name != OURS}
    say(f"\nDelay by a checkpoint:\n{harness.spread_table(timings, 's', {OURS: (PEER, ratios[PEER])}, digits=3)}")
    header = ["contender", "first s", "pause s", "steps until written", "a step s", "others' cores"]
    say(f"\n{harness.table(header, [detail(name, own) for name, own in notes.items()])}")
    for name, ratio in ratios.items():
        say(f"- lockstep / {name}: {ratio.median:.3f} [{ratio.lower95:.3f}, {ratio.upper95:.3f}]")
    late = {name: sum(not note["ended"] for note in own) for name, own in notes.items()}
    for name, number in late.items():
        if number:
            say(f"{name}: {number} checkpoints were not written within {args.after} steps: give more of them with --after")
    # Against the settings that were best for it, if several were measured.
    ours_to_async = max((ratio for name, ratio in ratios.items() if name != PEER), key=lambda ratio: ratio.median)
    harness.finish(
        {
            "benchmark": "checkpoint",
            "goal": GOAL,
            "better": "lower",
            **harness.ratio_fields(ratios[PEER]),
            "goal_met": ratios[PEER].median <= GOAL and ours_to_async.median < GOAL_ASYNC,
            "goal_async": GOAL_ASYNC,
            **harness.ratio_fields(ours_to_async, "ratio_async"),
            "medians_s": harness.medians(timings),
            "first_s": {name: round(own[0]["held_s"], 3) for name, own in notes.items()},
            "pause_s": {name: round(median_of("pause_s", own), 4) for name, own in notes.items()},
            "step_s": {name: round(median_of("step_s", own), 4) for name, own in notes.items()},
            "others_cores": {name: round(median_of("others_cores", own), 2) for name, own in notes.items()},
            "not_written_in_time": late,
            "async_save": args.async_save,
            "coverage": round(ratios[PEER].coverage, 4),
            "nproc": args.nproc,
            "threads": args.threads,
            **harness.circumstances(args, rounds, machine, ["safetensors"]),
        }
    )


def ratio_of(ours: list[float], theirs: list[float]) -> harness.Ratio:
    """Round by round; what is too small to be seen is taken for the least that can be (noise can
    make it negative)."""
    return harness.paired_ratio([max(held, _LEAST_S) for held in ours], [max(held, _LEAST_S) for held in theirs])


def median_of(field: str, own: Notes) -> float:
    """Over all checkpoints but the first."""
    values = [note[field] for note in own[1:]]
    return statistics.median(values) if values else math.nan


def detail(name: str, own: Notes) -> list[str]:
    return [
        name,
        f"{own[0]['held_s']:.2f}",
        f"{median_of('pause_s', own):.3f}",
        f"{median_of('held_steps', own):.0f}",
        f"{median_of('step_s', own):.3f}",
        f"{median_of('others_cores', own):.2f}",
    ]


if __name__ == "__main__":
    main()
