"""Measures what a training loop adds to a step, compared with a hand-written loop and other
libraries.

    python benchmarks/loop_overhead.py --nproc 1   the hand-written loop is plain PyTorch
    python benchmarks/loop_overhead.py --nproc 2   ... and DistributedDataParallel with a
                                                   DistributedSampler
    python benchmarks/loop_overhead.py             both, one after the other

The model is so small (two linear layers, 32 samples per process) that most of the measured time
is the overhead of libraries. In the same rounds, the contenders train another model, whose step
takes about 1 ms: the smallest that people train. Figures are microseconds per step over entire
epochs in memory. They include the loader, random streams, the optimizer, and the time between two
passes. No contender logs or shows progress; every process has one thread. All contenders are alive
throughout, in separate processes, and one runs at a time.

  ratio              lockstep / by hand, with a dataset of a user's class, whose samples both fetch
                     one by one
  ratio_1ms          the same with the model of 1 ms
  ratio_whole_batch  lockstep / by hand, with the same TensorDataset, of which lockstep fetches all
                     samples of a batch in one call

`peers` and `peers_1ms` have the ratio of each peer to the hand-written loop, `ratio_to_peers` and
`ratio_to_peers_1ms` that of lockstep to each peer. Without --nproc, the ratios in the last line are
those of the worse case; `cases` has each."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import _harness as harness
from _crew import Crew, Crews

GOAL = 1.15
GOAL_1MS = 1.05
GOAL_WHOLE_BATCH = 0.7
PEERS = {"accelerate": "accelerate", "fabric": "lightning_fabric", "ignite": "ignite"}
DISTRIBUTIONS = ("accelerate", "lightning-fabric", "pytorch-ignite")
OURS, HAND = "lockstep", "by-hand"
SMALL, OF_1MS, WHOLE = "", ", 1 ms", ", TensorDataset"
"""What the name of a contender ends in, for each model and data."""
SIZES = {SMALL: ("samples", ["64"]), OF_1MS: ("samples", ["384", "384"]), WHOLE: ("tensors", ["64"])}
"""The kind of data, and the widths of hidden layers."""


def measure(
    nproc: int, *, peers: list[str], batch: int, steps: int, rounds: int, say: Callable[[str], None]
) -> tuple[harness.Timings, harness.Timings]:
    """Microseconds a step of every contender in every round: on the clock, and of processor
    time."""
    contenders = [(name, size) for size in (SMALL, OF_1MS) for name in (HAND, OURS, *peers)]
    contenders += [(HAND, WHOLE), (OURS, WHOLE)]
    cpu: harness.Timings = {name + size: [] for name, size in contenders}
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:

        def start(contender: str, size: str) -> Callable[[], float]:
            name, (kind, hidden) = contender + size, SIZES[size]
            args = [contender, "--data", kind, "--hidden", *hidden, "--steps", str(steps), "--batch", str(batch)]
            run_dir = f"{scratch}/{list(SIZES).index(size)}"
            crew = crews.start(Crew(name, "loop.py", [*args, "--run-dir", run_dir], nproc))

            def turn() -> float:
                answers = crew.turn()
                cpu[name].append(sum(answer.cpu_s for answer in answers) / len(answers) / steps * 1e6)
                # the last one through ends a step
                return max(answer.wall_s for answer in answers) / steps * 1e6

            return turn

        turns = {name + size: start(name, size) for name, size in contenders}
        crews.wait_ready()
        return harness.interleave(turns, rounds, say), cpu


def judge(nproc: int, timings: harness.Timings, cpu: harness.Timings, say: Callable[[str], None]) -> dict[str, Any]:
    """The case's fields of the last line, after its tables."""
    ours, ours_cpu = ({size: _to_hand(each, OURS, size) for size in SIZES} for each in (timings, cpu))
    peers = {size: [name for name in PEERS if name + size in timings] for size in (SMALL, OF_1MS)}
    of_peers = {size: {name: _to_hand(timings, name, size) for name in peers[size]} for size in peers}
    to_peers = {
        size: {name: harness.paired_ratio(timings[OURS + size], timings[name + size]) for name in peers[size]}
        for size in peers
    }
    ratios = {OURS + size: (HAND + size, ratio) for size, ratio in ours.items()}
    ratios |= {name + size: (HAND + size, ratio) for size in peers for name, ratio in of_peers[size].items()}
    say(harness.spread_table(timings, "µs/step", ratios))
    say("\nThe same turns in processor time of a process, which others on the machine disturb less:")
    ratios_cpu = {OURS + size: (HAND + size, ratio) for size, ratio in ours_cpu.items()}
    ratios_cpu |= {name + size: (HAND + size, _to_hand(cpu, name, size)) for size in peers for name in peers[size]}
    say(harness.spread_table(cpu, "µs/step", ratios_cpu))
    for size in peers:
        for name, ratio in to_peers[size].items():
            say(f"lockstep / {name}{size}: {ratio.median:.3f} [{ratio.lower95:.3f}, {ratio.upper95:.3f}]")
    return {
        "nproc": nproc,
        **harness.ratio_fields(ours[SMALL]),
        **harness.ratio_fields(ours[OF_1MS], "ratio_1ms"),
        **harness.ratio_fields(ours[WHOLE], "ratio_whole_batch"),
        "goal_met": ours[SMALL].median <= GOAL,
        "goal_1ms_met": ours[OF_1MS].median <= GOAL_1MS,
        "goal_whole_batch_met": ours[WHOLE].median <= GOAL_WHOLE_BATCH,
        "ahead_of_every_peer": _all_ahead(to_peers[SMALL]),
        "ahead_of_every_peer_1ms": _all_ahead(to_peers[OF_1MS]),
        "peers": _fields(of_peers[SMALL]),
        "peers_1ms": _fields(of_peers[OF_1MS]),
        "ratio_to_peers": _fields(to_peers[SMALL]),
        "ratio_to_peers_1ms": _fields(to_peers[OF_1MS]),
        **harness.ratio_fields(ours_cpu[SMALL], "ratio_cpu"),
        **harness.ratio_fields(ours_cpu[OF_1MS], "ratio_cpu_1ms"),
        **harness.ratio_fields(ours_cpu[WHOLE], "ratio_cpu_whole_batch"),
        "medians_us": harness.medians(timings),
        "cpu_medians_us": harness.medians(cpu),
        "minima_us": {name: round(min(values), 3) for name, values in timings.items()},
        "spread_us": {name: round(statistics.pstdev(values), 3) for name, values in timings.items()},
        "coverage": round(ours[SMALL].coverage, 4),
    }


def _to_hand(timings: harness.Timings, contender: str, size: str) -> harness.Ratio:
    return harness.paired_ratio(timings[contender + size], timings[HAND + size])


def _all_ahead(to_peers: dict[str, harness.Ratio]) -> bool | None:
    return all(ratio.median < 1 for ratio in to_peers.values()) if to_peers else None


def _fields(ratios: dict[str, harness.Ratio]) -> dict[str, dict[str, float]]:
    return {name: harness.ratio_fields(ratio) for name, ratio in ratios.items()}


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
    whole = max(cases, key=lambda case: case["ratio_whole_batch"])
    of_1ms = max(cases, key=lambda case: case["ratio_1ms"])
    return {
        "benchmark": "loop_overhead",
        "goal": GOAL,
        "goal_1ms": GOAL_1MS,
        "goal_whole_batch": GOAL_WHOLE_BATCH,
        "better": "lower",
        **max(cases, key=lambda case: case["ratio"]),
        **{k: v for k, v in of_1ms.items() if "1ms" in k},
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
