"""Measures the cost of bit-identical results: a step with the fixed tree, compared with stock DDP.

    python benchmarks/exact.py --nproc 2              one shard per process
    python benchmarks/exact.py --nproc 2 --shards 4   several per process; DDP accumulates the
                                                      same micro-batches
    python benchmarks/exact.py --nproc 3 --shards 8   a number of processes that is not a power of 2
    python benchmarks/exact.py --nproc 2 --link 100   two hosts (network namespaces) with
                                                      100 Mbit/s between them

Both train the same transformers on the same global batches, with one thread per process: lockstep
with its whole loop, DDP with a hand-written loop whose data is ready in memory. A process runs its
shards one after another, 4 sequences of 32 tokens each.

  ratio   seconds per step with the tree / with DDP, for the largest model: lower is better
  memory  peak memory of the largest process with the tree, less the peak with DDP, in copies of
          all gradients (float32)
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import _harness as harness
from _crew import Crew, Crews, Host
from _link import slow_link

GOAL, GOAL_UPPER95, GOAL_ELSE = 1.02, 1.05, 1.10
# Parameters, and steps of a turn.
SIZES = {"0.5M": (485_960, 20), "5M": (4_841_160, 4), "25M": (25_424_072, 1)}
TREE, DDP = "fixed tree", "stock DDP"


def measure(
    size: str, *, nproc: int, shards: int, steps: int, rounds: int, hosts: Sequence[Host], say: Callable[[str], None]
) -> tuple[harness.Timings, float]:
    """Milliseconds of a step in every round, and how many copies of the gradients the tree needs
    more than DDP."""
    peaks: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:

        def start(name: str, contender: str) -> Callable[[], float]:
            args = [contender, "--size", size, "--shards", str(shards), "--steps", str(steps), "--run-dir", f"{scratch}/run"]
            crew = crews.start(Crew(f"{name}, {size}", "tree.py", args, nproc, hosts=hosts))

            def turn() -> float:
                answers = crew.turn()
                peaks[name] = max(answer.peak_rss_bytes for answer in answers)
                return max(answer.wall_s for answer in answers) / steps * 1e3

            return turn

        turns = {DDP: start(DDP, "ddp"), TREE: start(TREE, "exact")}
        crews.wait_ready()
        timings = harness.interleave(turns, rounds, say)
    return timings, (peaks[TREE] - peaks[DDP]) / (4 * SIZES[size][0])


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=30)
    parser.add_argument("--nproc", type=int, default=2, metavar="W", help="processes (default: 2)")
    parser.add_argument("--shards", type=int, metavar="V", help="shards of a global batch (default: one for each process)")
    parser.add_argument("--sizes", metavar="N,N", help=f"models, of {', '.join(SIZES)} (default: all; with --link: 5M)")
    parser.add_argument("--link", type=int, metavar="MBIT", help="two hosts with this many Mbit/s between them; needs root")
    args = parser.parse_args()
    shards = args.shards or args.nproc
    if not 1 <= args.nproc <= shards:
        raise SystemExit(f"--nproc {args.nproc} --shards {shards}: there must be a shard for each process")
    if args.link and args.nproc != 2:
        raise SystemExit(f"--link {args.link} joins two hosts with a process each: leave --nproc at 2")
    names = (args.sizes or ("0.5M" if args.quick else "5M" if args.link else ",".join(SIZES))).split(",")
    if unknown := [name for name in names if name not in SIZES]:
        raise SystemExit(f"--sizes {unknown[0]}: choose from {', '.join(SIZES)}")
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    machine = harness.machine()
    found: dict[str, Any] = {}
    with slow_link(args.link) if args.link else contextlib.nullcontext([]) as hosts:
        for name in names:
            steps = 2 if args.quick else SIZES[name][1]
            say(f"{name} parameters, {args.nproc} processes, {shards} shards, {rounds} rounds of {steps} steps")
            timings, copies = measure(
                name, nproc=args.nproc, shards=shards, steps=steps, rounds=rounds, hosts=hosts, say=say
            )
            ratio = harness.paired_ratio(timings[TREE], timings[DDP])
            say(harness.spread_table(timings, "ms a step", {TREE: (DDP, ratio)}))
            say(f"memory: {copies:+.2f} copies of the gradients against DDP")
            found[name] = {
                **harness.ratio_fields(ratio),
                "medians_ms": harness.medians(timings),
                "memory_copies": round(copies, 2),
                "coverage": round(ratio.coverage, 4),
            }
    largest = found[names[-1]]
    is_plain = shards == args.nproc and not args.link
    goal = GOAL if is_plain else GOAL_ELSE
    worst = max(result["ratio_upper95"] for result in found.values())
    harness.finish(
        {
            "benchmark": "exact",
            "goal": goal,
            "better": "lower",
            **{name: largest[name] for name in ("ratio", "ratio_lower95", "ratio_upper95")},
            "worst_upper95": worst,
            "goal_met": largest["ratio"] <= goal and (worst <= GOAL_UPPER95 or not is_plain),
            "medians_ms": largest["medians_ms"],
            "sizes": found,
            "coverage": largest["coverage"],
            "nproc": args.nproc,
            "shards": shards,
            "link_mbit": args.link,
            **harness.circumstances(args, rounds, machine),
        }
    )


if __name__ == "__main__":
    main()
