"""Measures the time from a command to its first all-reduce: `lockstep run` compared with
`torchrun`, on one machine.

    python benchmarks/startup.py --nproc 8

Each round runs three commands to their end, in a new random order:

  lockstep        lockstep run --nproc-per-node N, with a script that calls lockstep.join() and
                  team.all_reduce()
  torchrun        torchrun --nproc-per-node N, with a script that calls
                  init_process_group("gloo") and all_reduce()
  torchrun script under lockstep
                  torchrun's script under lockstep run: the launcher alone

The result is the time from starting the command until rank 0 has the sum. The time until the
command exits is reported separately. After the first round, files are in the page cache for all.

  ratio        lockstep / torchrun, to the first all-reduce
  ratio_whole  lockstep / torchrun, the whole command
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import _harness as harness
from _crew import WORKERS, clean_environ

GOAL = 0.18
OURS, PEER, OURS_SAME = "lockstep", "torchrun", "torchrun script under lockstep"
_TIMEOUT_S = 300


def commands(nproc: int) -> dict[str, list[str]]:
    """The contenders' command lines, up to the script's argument."""
    asked = ["--nproc-per-node", str(nproc)]
    lockstep = [str(Path(sys.executable).with_name("lockstep")), "run"]
    torchrun = [str(Path(sys.executable).with_name("torchrun"))]
    return {
        PEER: [*torchrun, *asked, str(WORKERS / "first_torchrun.py")],
        OURS: [*lockstep, *asked, str(WORKERS / "first_lockstep.py")],
        OURS_SAME: [*lockstep, *asked, str(WORKERS / "first_torchrun.py")],
    }


def run_once(command: list[str], nproc: int) -> tuple[float, float]:
    """Returns the seconds until rank 0 had the sum, and until the command exited."""
    with tempfile.TemporaryDirectory() as scratch:
        note = Path(scratch) / "note"
        began = time.monotonic()
        done = subprocess.run(
            [*command, str(note)],
            cwd=scratch,  # lockstep's run directory goes there
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        ended = time.monotonic()
        if done.returncode or not note.exists():
            raise SystemExit(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
        had_sum, total = note.read_text(encoding="utf-8").split()
        if int(total) != nproc:
            raise SystemExit(f"{' '.join(command)}: the sum over {nproc} processes was {total}")
    return float(had_sum) - began, ended - began


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=9)
    parser.add_argument("--nproc", type=int, metavar="N", help="processes (default: 8)")
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args, quick=1)
    nproc = args.nproc or (2 if args.quick else 8)
    machine = harness.machine()
    say(f"{nproc} processes, {rounds} rounds")
    contenders = commands(nproc)
    if args.quick:
        del contenders[OURS_SAME]
    whole: harness.Timings = {name: [] for name in contenders}

    def turn(name: str, command: list[str]) -> Callable[[], float]:
        def run() -> float:
            first, total = run_once(command, nproc)
            whole[name].append(total)
            return first

        return run

    first = harness.interleave({name: turn(name, cmd) for name, cmd in contenders.items()}, rounds, say)
    report(args, nproc, rounds, first, whole, machine)


def report(
    args: argparse.Namespace,
    nproc: int,
    rounds: int,
    first: harness.Timings,
    whole: harness.Timings,
    machine: dict[str, object],
) -> None:
    """Both tables and the last line."""
    say = harness.speaker(args)
    ratio, ratio_whole = (harness.paired_ratio(times[OURS], times[PEER]) for times in (first, whole))
    for title, times in (("To the first all-reduce", first), ("The whole command", whole)):
        ratios = {name: (PEER, harness.paired_ratio(times[name], times[PEER])) for name in times if name != PEER}
        say(f"\n{title}:\n{harness.spread_table(times, 's', ratios, digits=2)}")
    same = harness.paired_ratio(first[OURS_SAME], first[PEER]) if OURS_SAME in first else None
    harness.finish(
        {
            "benchmark": "startup",
            "goal": GOAL,
            "better": "lower",
            **harness.ratio_fields(ratio),
            "goal_met": ratio.median <= GOAL,
            **harness.ratio_fields(ratio_whole, "ratio_whole"),
            **({} if same is None else harness.ratio_fields(same, "ratio_same_script")),
            "medians_s": harness.medians(first),
            "medians_whole_s": harness.medians(whole),
            "coverage": round(ratio.coverage, 4),
            "nproc": nproc,
            **harness.circumstances(args, rounds, machine),
        }
    )


if __name__ == "__main__":
    main()
