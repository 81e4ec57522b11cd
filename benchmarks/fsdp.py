"""Measures the cost of bit-identical results with ``fully_shard``: a step and the memory of a
process, compared with plain ``fully_shard``.

    python benchmarks/fsdp.py --nproc 2              one shard per process
    python benchmarks/fsdp.py --nproc 2 --shards 8   several per process; the peer accumulates them
    python benchmarks/fsdp.py --nproc 1 --shards 4 --beside exact
                                                     one process, compared with the strategy exact,
                                                     which has bit-identical results

All train the same transformers on the same global batches, with one thread per process: lockstep
with its whole loop, the peer with a hand-written loop whose data is ready in memory, and with the
same blocks sharded. A process runs its shards one after another, 4 sequences of 32 tokens each.
Checkpoints are off, since the peer has none.

  ratio         seconds per step with lockstep's fsdp / with the peer, for the largest model:
                lower is better
  memory_ratio  the same ratio for the peak memory of the largest process (resident memory, from
                its start)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import _harness as harness
from _crew import Crew, Crews

GOAL, MEMORY_GOAL = 1.05, 1.05
# Steps of a turn, by about how many parameters the model has.
STEPS = {"0.5M": 10, "5M": 3, "25M": 1, "100M": 1}
OURS, PEERS = "fsdp", {"fully_shard": "plain fully_shard", "exact": "exact"}


def measure(
    size: str, peer: str, *, nproc: int, shards: int, steps: int, rounds: int, say: Callable[[str], None]
) -> tuple[harness.Timings, dict[str, int]]:
    """Milliseconds of a step in every round, and the peak of each contender's fullest process in
    bytes."""
    peaks: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:

        def start(name: str, contender: str) -> Callable[[], float]:
            run_dir = f"{scratch}/{contender}"
            args = [contender, "--size", size, "--shards", str(shards), "--steps", str(steps), "--run-dir", run_dir]
            crew = crews.start(Crew(f"{name}, {size}", "tree.py", [*args, "--no-checkpoints"], nproc))

            def turn() -> float:
                answers = crew.turn()
                peaks[name] = max(answer.peak_rss_bytes for answer in answers)
                return max(answer.wall_s for answer in answers) / steps * 1e3

            return turn

        turns = {PEERS[peer]: start(PEERS[peer], peer), OURS: start(OURS, "fsdp")}
        crews.wait_ready()
        timings = harness.interleave(turns, rounds, say)
    return timings, peaks


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=20)
    parser.add_argument("--nproc", type=int, default=2, metavar="W", help="processes (default: 2)")
    parser.add_argument("--shards", type=int, metavar="V", help="shards of a global batch (default: one for each process)")
    parser.add_argument("--sizes", metavar="N,N", help=f"models, of {', '.join(STEPS)} (default: 5M,25M)")
    parser.add_argument("--beside", choices=PEERS, default="fully_shard", help="the peer (default: fully_shard)")
    args = parser.parse_args()
    shards = args.shards or args.nproc
    if args.nproc < 1 or shards < 1 or shards % args.nproc:
        raise SystemExit(f"--nproc {args.nproc} --shards {shards}: each process must have equally many shards")
    names = (args.sizes or ("0.5M" if args.quick else "5M,25M")).split(",")
    if unknown := [name for name in names if name not in STEPS]:
        raise SystemExit(f"--sizes {unknown[0]}: choose from {', '.join(STEPS)}")
    say, rounds, peer = harness.speaker(args), harness.resolve_rounds(args), PEERS[args.beside]
    machine = harness.machine()
    found: dict[str, Any] = {}
    for name in names:
        steps = 1 if args.quick else STEPS[name]
        say(f"{name} parameters, {args.nproc} processes, {shards} shards, {rounds} rounds of {steps} steps")
        timings, peaks = measure(name, args.beside, nproc=args.nproc, shards=shards, steps=steps, rounds=rounds, say=say)
        ratio = harness.paired_ratio(timings[OURS], timings[peer])
        say(harness.spread_table(timings, "ms a step", {OURS: (peer, ratio)}))
        megabytes = {contender: round(peak / 1e6, 1) for contender, peak in peaks.items()}
        memory_ratio = round(peaks[OURS] / peaks[peer], 4)
        say(f"memory: {megabytes[OURS]} MB to {megabytes[peer]} at the peak, {memory_ratio:.3f}")
        found[name] = {
            **harness.ratio_fields(ratio),
            "medians_ms": harness.medians(timings),
            "memory_ratio": memory_ratio,
            "peaks_mb": megabytes,
            "coverage": round(ratio.coverage, 4),
        }
    largest = found[names[-1]]
    harness.finish(
        {
            "benchmark": "fsdp",
            "goal": GOAL,
            "memory_goal": MEMORY_GOAL,
            "better": "lower",
            **largest,
            "goal_met": largest["ratio"] <= GOAL and largest["memory_ratio"] <= MEMORY_GOAL,
            "sizes": found,
            "nproc": args.nproc,
            "shards": shards,
            "beside": args.beside,
            **harness.circumstances(args, rounds, machine),
        }
    )


if __name__ == "__main__":
    main()
