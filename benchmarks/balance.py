"""Measures the cost of a process at half speed, with and without moving shards to faster processes.

    python benchmarks/balance.py                         2 and 3 processes, 8 and 16 shards,
                                                         and 2 processes of equal speed
    python benchmarks/balance.py --nproc 2 --shards 16   one of these

The last process gets half of the processor time of the others: by a quota if this machine allows
it (``--slow-by quota``), by stops for half of the time (``stops``), or because another program
computes on its core (``competitor``). All processes are pinned to cores. If there are more
processes than cores, each gets less time, so that together they need no more than the machine
has. On a shared machine, ``--core 0.3`` slows all of them so much that their time is available.

Contenders alternate: with and without ``balance``, and *apart*: the same number of processes that
train alone, at the same speeds and at the same time. The slow one trains for half as many steps, so
that no core is idle meanwhile. The sum of their throughputs is ideal, since no process waits for
another.

  of_ideal     throughput with balance / that sum: higher is better. off_of_ideal: without balance
  possible     the largest ratio that undivided shards allow at the speeds measured apart. With
               speeds 1 and 1/2 it is 0.89 for 8 shards (5 and 3, or 6 and 2) and 0.97 for 16;
               with 1, 1 and 1/2 it is 0.80 and 0.91
  of_possible  of_ideal / possible. The goal refers to it, since 0.95 of the ideal is not always
               possible
  equal        throughput with balance / without, on processes of equal speed. equal_cpu: the
               ratio of processor time per sample
  moves        the number of moves of shards, with balance: on a quiet machine, 1 if one process
               is slow and 0 if all are equal
  one_digest   whether weights are bit-identical after every turn, with balance, without, and on
               one process
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _harness as harness
from _crew import Crew, Crews
from _speeds import WAYS, Speeds, best_way, pin

from lockstep._events.history import read_events
from lockstep._plan.balance import fair_sizes

GOAL, GOAL_EQUAL = 0.95, 0.99
ON, OFF, APART = "balance on", "balance off", "apart"
SAMPLES = 16  # of a shard, as in workers/balanced.py


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the contenders did."""

    timings: harness.Timings
    """Samples a second."""
    cpu: harness.Timings
    """Processor seconds of all ranks."""
    possible: float
    moves: Sequence[Sequence[int]]
    """The shards by rank after each move."""
    one_digest: bool


def _digests(path: Path) -> dict[str, str]:
    return dict(line.split() for line in path.read_text(encoding="utf-8").splitlines())


def possible(shards: int, rates: Sequence[float]) -> float:
    """The most that whole shards allow, as a share of the sum of these speeds."""
    a_shard = [1 / rate for rate in rates]
    sizes = fair_sizes(shards, a_shard, [0.0] * len(rates))
    return shards / max(size * took for size, took in zip(sizes, a_shard, strict=True)) / sum(rates)


def measure(
    speeds: Speeds,
    shards: int,
    *,
    steps: int,
    settling: int,
    rounds: int,
    contenders: Sequence[str],
    say: Callable[[str], None],
) -> Measured:
    """Let the contenders take turns."""
    nproc = len(speeds.shares)
    each: dict[int, list[float]] = {rank: [] for rank in range(nproc)}
    cpu: harness.Timings = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:

        def start(name: str) -> Callable[[], float]:
            where = Path(scratch, name.replace(" ", "-"))
            where.mkdir()
            args = ["--shards", str(shards), "--warm-up", "1", "--dir", str(where)]
            args += ["--balance", "on" if name == ON else "off"]
            # Apart, all are to end at about the same time: a core next to one that is idle may be
            # faster.
            numbers = [round(steps * share / max(speeds.shares)) if name == APART else steps for share in speeds.shares]
            more_args = [["--steps", str(number)] for number in numbers]
            crew = crews.start(
                Crew(f"{name}, {nproc}", "balanced.py", args, nproc, independent=name == APART, more_args=more_args)
            )
            crew.wait_ready()
            for pid, core in zip(crew.pids, speeds.cores, strict=True):
                pin(pid, core)

            def turn() -> float:
                with speeds.imposed(crew.pids):
                    answers = crew.turn()
                cpu[name].append(sum(answer.cpu_s for answer in answers))
                rates = [number * shards * SAMPLES / answer.wall_s for number, answer in zip(numbers, answers, strict=True)]
                if name != APART:
                    return min(rates)
                for rank, rate in enumerate(rates):
                    each[rank].append(rate)
                return sum(rates)

            for _ in range(settling if name == ON else 1):  # shards move in these turns
                turn()
            cpu[name].clear()
            each.update((rank, []) for rank in range(nproc))
            return turn

        turns = {name: start(name) for name in contenders}
        timings = harness.interleave(turns, rounds, say)
        seen = [_digests(path) for path in Path(scratch).rglob("weights.sha256")]
        events = read_events(Path(scratch, ON.replace(" ", "-"), "run"))
        moves = [event["shards"] for event in events if event["event"] == "move"]
    return Measured(
        timings=timings,
        cpu=cpu,
        possible=possible(shards, [statistics.median(rates) if rates else 1.0 for rates in each.values()]),
        moves=moves,
        one_digest=all(len({digests[step] for digests in seen if step in digests}) == 1 for step in seen[0]),
    )


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=10)
    parser.add_argument("--nproc", metavar="W,W", default="2,3", help="numbers of processes (default: 2,3)")
    parser.add_argument("--shards", metavar="V,V", default="8,16", help="numbers of shards (default: 8,16)")
    parser.add_argument("--slow-by", choices=WAYS, default=best_way(), help="see above (here by default: %(default)s)")
    parser.add_argument(
        "--core",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="what a core has for its processes, on a busy machine (default: 1)",
    )
    parser.add_argument(
        "--settling", type=int, metavar="N", help="turns with balance before the first that counts (default: 4)"
    )
    args = parser.parse_args()
    if not 0 < args.core <= 1:
        raise SystemExit(f"--core {args.core}: a share of more than 0 and at most 1")
    say, rounds, machine = harness.speaker(args), harness.resolve_rounds(args), harness.machine()
    sizes: dict[str, Any] = {"steps": 2 if args.quick else 5, "say": say, "rounds": rounds}
    sizes["settling"] = args.settling if args.settling is not None else 1 if args.quick else 4
    found: dict[str, Any] = {}
    for nproc in map(int, args.nproc.split(",")):
        for shards in map(int, args.shards.split(",")):
            if shards < 2 * nproc:
                raise SystemExit(f"--nproc {nproc} --shards {shards}: shards move where each process can have two")
            say(f"{nproc} processes, the last at half speed (by {args.slow_by}), {shards} shards")
            speeds = Speeds.choose(nproc, args.slow_by, args.core, equal=False)
            seen = measure(speeds, shards, contenders=(APART, OFF, ON), **sizes)
            of_ideal, off = (harness.paired_ratio(seen.timings[name], seen.timings[APART]) for name in (ON, OFF))
            say(harness.spread_table(seen.timings, "samples/s", {ON: (APART, of_ideal), OFF: (APART, off)}))
            of_possible = harness.scaled(of_ideal, 1 / seen.possible)
            say(
                f"of the ideal {of_ideal.median:.3f} with balance, {off.median:.3f} without; whole shards allow "
                f"{seen.possible:.3f}, of which {of_possible.median:.3f} was reached; shards moved {_arrows(seen.moves)}\n"
            )
            found[f"{nproc}x{shards}"] = {
                **harness.ratio_fields(of_ideal, "of_ideal"),
                "possible": round(seen.possible, 4),
                **harness.ratio_fields(of_possible, "of_possible"),
                "off_of_ideal": round(off.median, 4),
                "moves": seen.moves,
                "one_digest": seen.one_digest,
                "medians": harness.medians(seen.timings, 1),
                "shares": [round(share, 3) for share in speeds.shares],
            }
    nproc, shards = (int(numbers.split(",")[0]) for numbers in (args.nproc, args.shards))
    say(f"{nproc} equal processes, {shards} shards")
    seen = measure(Speeds.choose(nproc, args.slow_by, args.core, equal=True), shards, contenders=(OFF, ON), **sizes)
    equal = harness.paired_ratio(seen.timings[ON], seen.timings[OFF])
    equal_cpu = harness.paired_ratio(seen.cpu[ON], seen.cpu[OFF])
    say(harness.spread_table(seen.timings, "samples/s", {ON: (OFF, equal)}))
    say(f"processor time of a sample, with balance / without: {equal_cpu.median:.3f}; shards moved {_arrows(seen.moves)}")
    worst = min(found, key=lambda case: found[case]["of_possible"])
    one_digest = seen.one_digest and all(case["one_digest"] for case in found.values())
    harness.finish(
        {
            "benchmark": "balance",
            "goal": GOAL,
            "goal_equal": GOAL_EQUAL,
            "better": "higher",
            **{f"ratio{end}": found[worst][f"of_possible{end}"] for end in ("", "_lower95", "_upper95")},
            **harness.ratio_fields(equal, "equal"),
            "equal_cpu": round(equal_cpu.median, 4),
            "equal_moves": seen.moves,
            "one_digest": one_digest,
            "goal_met": found[worst]["of_possible"] >= GOAL and equal.median >= GOAL_EQUAL and one_digest,
            "medians_samples_per_s": found[worst]["medians"],
            "cases": found,
            "slow_by": args.slow_by,
            "core": args.core,
            **harness.circumstances(args, rounds, machine),
        }
    )


def _arrows(moves: Sequence[Sequence[int]]) -> str:
    """What shards each rank had after each move."""
    return "never" if not moves else "to " + ", then ".join(" + ".join(map(str, sizes)) for sizes in moves)


if __name__ == "__main__":
    main()
