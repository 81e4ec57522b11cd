"""Measures what a training loop adds to a step, compared with a hand-written loop and other
libraries.

    python benchmarks/loop_overhead.py --nproc 1   the hand-written loop is plain PyTorch
    python benchmarks/loop_overhead.py --nproc 2   ... and DistributedDataParallel with a
                                                   DistributedSampler
    python benchmarks/loop_overhead.py             both, one after the other

The model is so small (two linear layers, 32 samples per process) that most of the measured time
is the overhead of libraries. Figures are microseconds per step over entire epochs in memory. They
include the loader, random streams, the optimizer, and the time between two passes. No contender
logs or shows progress; every process has one thread. All contenders are alive throughout, in
separate processes, and one runs at a time.

  ratio              lockstep / by hand, with a dataset of a user's class, whose samples both fetch
                     one by one
  ratio_whole_batch  lockstep / by hand, with the same TensorDataset, of which lockstep fetches all
                     samples of a batch in one call

Without --nproc, `ratio` and `ratio_whole_batch` in the last line are the worse case; `cases` has
each."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import _harness as harness
from _crew import Crew, Crews

GOAL = 1.05
GOAL_WHOLE_BATCH = 0.7
PEERS = {"accelerate": "accelerate", "fabric": "lightning_fabric", "ignite": "ignite"}
DISTRIBUTIONS = ("accelerate", "lightning-fabric", "pytorch-ignite")
OURS, HAND = "lockstep", "by-hand"
OURS_WHOLE, HAND_WHOLE = "lockstep, TensorDataset", "by-hand, TensorDataset"


def measure(
    nproc: int, *, peers: list[str], batch: int, steps: int, rounds: int, say: Callable[[str], None]
) -> tuple[harness.Timings, harness.Timings]:
    """Microseconds a step of every contender in every round: on the clock, and of processor
    time."""
    data = {name: (name, "samples") for name in (HAND, OURS, *peers)}
    data |= {HAND_WHOLE: (HAND, "tensors"), OURS_WHOLE: (OURS, "tensors")}
    cpu: harness.Timings = {name: [] for name in data}
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:

        def start(name: str, contender: str, kind: str) -> Callable[[], float]:
            args = [contender, "--data", kind, "--steps", str(steps), "--batch", str(batch)]
            crew = crews.start(Crew(name, "loop.py", [*args, "--run-dir", f"{scratch}/{kind}"], nproc))

            def turn() -> float:
                answers = crew.turn()
                cpu[name].append(sum(answer.cpu_s for answer in answers) / len(answers) / steps * 1e6)
                # the last one through ends a step
                return max(answer.wall_s for answer in answers) / steps * 1e6

            return turn

        turns = {name: start(name, *what) for name, what in data.items()}
        crews.wait_ready()
        return harness.interleave(turns, rounds, say), cpu


def judge(nproc: int, timings: harness.Timings, cpu: harness.Timings, say: Callable[[str], None]) -> dict[str, Any]:
    """The case's fields of the last line, after its tables."""
    equal = harness.paired_ratio(timings[OURS], timings[HAND])
    whole = harness.paired_ratio(timings[OURS_WHOLE], timings[HAND_WHOLE])
    peers = {name: harness.paired_ratio(timings[OURS], timings[name]) for name in PEERS if name in timings}
    ratios: dict[str, tuple[str, harness.Ratio]] = {OURS: (HAND, equal), OURS_WHOLE: (HAND_WHOLE, whole)}
    for name in peers:
        ratios[name] = (HAND, harness.paired_ratio(timings[name], timings[HAND]))
    say(harness.spread_table(timings, "µs/step", ratios))
    equal_cpu = harness.paired_ratio(cpu[OURS], cpu[HAND])
    whole_cpu = harness.paired_ratio(cpu[OURS_WHOLE], cpu[HAND_WHOLE])
    say("\nThe same turns in processor time of a process, which others on the machine disturb less:")
    say(harness.spread_table(cpu, "µs/step", {OURS: (HAND, equal_cpu), OURS_WHOLE: (HAND_WHOLE, whole_cpu)}))
    for name, ratio in peers.items():
        say(f"lockstep / {name}: {ratio.median:.3f} [{ratio.lower95:.3f}, {ratio.upper95:.3f}]")
    return {
        "nproc": nproc,
        **harness.ratio_fields(equal),
        **harness.ratio_fields(whole, "ratio_whole_batch"),
        "goal_met": equal.median <= GOAL,
        "goal_whole_batch_met": whole.median <= GOAL_WHOLE_BATCH,
        "ahead_of_every_peer": all(ratio.median < 1 for ratio in peers.values()) if peers else None,
        "ratio_to_peers": {name: harness.ratio_fields(ratio) for name, ratio in peers.items()},
        **harness.ratio_fields(equal_cpu, "ratio_cpu"),
        **harness.ratio_fields(whole_cpu, "ratio_cpu_whole_batch"),
        "medians_us": harness.medians(timings),
        "cpu_medians_us": harness.medians(cpu),
        "minima_us": {name: round(min(values), 3) for name, values in timings.items()},
        "spread_us": {name: round(statistics.pstdev(values), 3) for name, values in timings.items()},
        "coverage": round(equal.coverage, 4),
    }


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=60)
    parser.add_argument("--nproc", type=int, choices=(1, 2), help="processes of each contender (default: 1, then 2)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a turn, which is an epoch (default: 300)")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="samples a process and step (default: 32)")
    parser.add_argument("--no-peers", action="store_true", help="lockstep and the hand-written loop only")
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    steps = args.steps or (20 if args.quick else 300)
    peers = [] if args.no_peers or args.quick else harness.find_peers(PEERS, say)
    machine = harness.machine()
    cases = []
    for nproc in [args.nproc] if args.nproc else [1] if args.quick else [1, 2]:
        say(f"\n{nproc} process{'es' if nproc > 1 else ''}, {rounds} rounds of {steps} steps")
        timings, cpu = measure(nproc, peers=peers, batch=args.batch, steps=steps, rounds=rounds, say=say)
        cases.append(judge(nproc, timings, cpu, say))
    harness.finish(summary(args, cases, rounds, steps, machine))


def summary(
    args: argparse.Namespace, cases: list[dict[str, Any]], rounds: int, steps: int, machine: dict[str, Any]
) -> dict[str, Any]:
    """The last line: of several cases, the worse of each figure."""
    equal = max(cases, key=lambda case: case["ratio"])
    whole = max(cases, key=lambda case: case["ratio_whole_batch"])
    return {
        "benchmark": "loop_overhead",
        "goal": GOAL,
        "goal_whole_batch": GOAL_WHOLE_BATCH,
        "better": "lower",
        **{k: v for k, v in equal.items() if "whole_batch" not in k},
        **{k: v for k, v in whole.items() if "whole_batch" in k},
        **({"cases": cases} if len(cases) > 1 else {}),
        "rounds": rounds,
        "steps": steps,
        "batch": args.batch,
        "quick": args.quick,
        "machine": machine,
        "versions": harness.versions(DISTRIBUTIONS),
    }


if __name__ == "__main__":
    main()
