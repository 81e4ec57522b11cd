"""What a process at half speed costs, where shards move to where the time is, and where they do not.

    python benchmarks/balance.py                         2 and 3 processes, 8 and 16 shards; and 2 equal processes
    python benchmarks/balance.py --nproc 2 --shards 16   one of these

The last process gets half of the processor time of the others: it is stopped for half of the time, as by the quota of a
container (``--slow-by stops``, 100 times a second), or another program computes on its core (``--slow-by competitor``, which
needs a core for each process). All processes are pinned to cores. Where there are more processes than cores, all are stopped
now and then, so that together they need no more than there are.

Contenders take turns: with and without ``balance``, and *apart*: as many processes that train alone, at the same speeds and at
the same time. The sum of their throughputs is ideal: no one waits for anybody.

  of_ideal   ratio of the throughput with balance to that sum: higher is better. ``off_of_ideal`` is the same without
  possible   the most that whole shards allow: with 8 of them and speeds of 1 and 1/2 it is 0.89 (5 and 3, or 6 and 2)
  equal      throughput with balance / without, on processes of equal speed
  one_digest whether weights are equal to the bit after every turn, with balance, without, and on one process
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _harness as harness
from _crew import Crew, Crews

from lockstep.plan.balance import fair_sizes

GOAL, GOAL_EQUAL = 0.95, 0.99
ON, OFF, APART = "balance on", "balance off", "apart"
SAMPLES = 4  # of a shard, as in workers/balanced.py
_PERIOD_S = 0.01


@dataclass(frozen=True)
class Speeds:
    """How much of a core each process gets."""

    shares: Sequence[float]
    cores: Sequence[int]
    competes: bool
    """Whether another program slows the last one; else it is stopped now and then, as are all with a share below 1."""

    @classmethod
    def choose(cls, nproc: int, slow_by: str, *, equal: bool) -> Speeds:
        available = sorted(os.sched_getaffinity(0))
        cores = [available[rank % len(available)] for rank in range(nproc)]
        shares = [1.0] * nproc if equal else [1.0] * (nproc - 1) + [0.5]
        most = max(sum(share for share, at in zip(shares, cores, strict=True) if at == core) for core in cores)
        # A bit less than a core holds, since nothing schedules without a loss.
        fitting = [share / most * (0.9 if most > 1 else 1.0) for share in shares]
        if slow_by == "competitor" and most > 1:
            raise SystemExit(f"--slow-by competitor needs a core for each of {nproc} processes: --slow-by stops does not")
        return cls(fitting, cores, slow_by == "competitor" and not equal)


def _pin(pid: int, core: int) -> None:
    """All threads that the process has."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {core})


@contextlib.contextmanager
def slowed(pids: Sequence[int], speeds: Speeds) -> Iterator[None]:
    """Let the processes have their shares of their cores meanwhile."""
    ended = threading.Event()
    competitor = None
    if speeds.competes:
        competitor = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        _pin(competitor.pid, speeds.cores[-1])

    def stop_now_and_then(pid: int, share: float) -> None:
        while not ended.is_set():
            time.sleep(_PERIOD_S * share)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(_PERIOD_S * (1 - share))
            os.kill(pid, signal.SIGCONT)

    threads = [
        threading.Thread(target=stop_now_and_then, args=(pid, share))
        for pid, share in zip(pids, speeds.shares, strict=True)
        if share < 1 and not speeds.competes
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        if competitor is not None:
            competitor.kill()
            competitor.wait()


def _digests(path: Path) -> dict[str, str]:
    return dict(line.split() for line in path.read_text(encoding="utf-8").splitlines())


def measure(
    nproc: int,
    shards: int,
    speeds: Speeds,
    *,
    steps: int,
    settling: int,
    rounds: int,
    contenders: Sequence[str],
    say: Callable[[str], None],
) -> tuple[harness.Timings, float, bool]:
    """Samples a second of each contender in every round; the most that whole shards allow, as a share of the ideal; and whether
    all had one digest."""
    each: dict[int, list[float]] = {rank: [] for rank in range(nproc)}
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:

        def start(name: str) -> Callable[[], float]:
            where = Path(scratch, name.replace(" ", "-"))
            where.mkdir()
            args = ["--shards", str(shards), "--steps", str(steps), "--warm-up", "1", "--dir", str(where)]
            args += ["--balance", "on" if name == ON else "off"]
            crew = crews.start(Crew(f"{name}, {nproc}", "balanced.py", args, nproc, independent=name == APART))
            crew.wait_ready()
            for pid, core in zip(crew.pids, speeds.cores, strict=True):
                _pin(pid, core)

            def turn() -> float:
                with slowed(crew.pids, speeds):
                    took = [answer.wall_s for answer in crew.turn()]
                if name != APART:
                    return steps * shards * SAMPLES / max(took)
                rates = [steps * shards * SAMPLES / wall_s for wall_s in took]
                for rank, rate in enumerate(rates):
                    each[rank].append(rate)
                return sum(rates)

            for _ in range(settling):  # shards move in these turns
                turn()
            return turn

        timings = harness.interleave({name: start(name) for name in contenders}, rounds, say)
        seen = [_digests(path) for path in Path(scratch).rglob("weights.sha256")]
    a_shard = [1 / statistics.median(each[rank]) for rank in range(nproc)] if each[0] else [1.0] * nproc
    slowest = max(size * took for size, took in zip(fair_sizes(shards, a_shard, [0.0] * nproc), a_shard, strict=True))
    possible = shards / slowest / sum(1 / took for took in a_shard)
    return timings, possible, all(len({digests[step] for digests in seen if step in digests}) == 1 for step in seen[0])


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=10)
    parser.add_argument("--nproc", metavar="W,W", default="2,3", help="numbers of processes (default: 2,3)")
    parser.add_argument("--shards", metavar="V,V", default="8,16", help="numbers of shards (default: 8,16)")
    parser.add_argument("--slow-by", choices=("stops", "competitor"), default="stops", help="see above (default: stops)")
    parser.add_argument("--settling", type=int, metavar="N", help="turns before the first that counts (default: 4)")
    args = parser.parse_args()
    say, rounds, machine = harness.speaker(args), harness.resolve_rounds(args), harness.machine()
    steps = 4 if args.quick else 12
    settling = args.settling if args.settling is not None else 1 if args.quick else 4
    found: dict[str, Any] = {}
    for nproc in map(int, args.nproc.split(",")):
        for shards in map(int, args.shards.split(",")):
            if shards < 2 * nproc:
                raise SystemExit(f"--nproc {nproc} --shards {shards}: shards move where each process can have two")
            say(f"{nproc} processes, the last at half speed, {shards} shards")
            speeds = Speeds.choose(nproc, args.slow_by, equal=False)
            timings, possible, one_digest = measure(
                nproc, shards, speeds, steps=steps, settling=settling, rounds=rounds, contenders=(APART, OFF, ON), say=say
            )
            of_ideal, off = (harness.paired_ratio(timings[name], timings[APART]) for name in (ON, OFF))
            say(harness.spread_table(timings, "samples/s", {ON: (APART, of_ideal), OFF: (APART, off)}))
            found[f"{nproc}x{shards}"] = {
                **harness.ratio_fields(of_ideal, "of_ideal"),
                "off_of_ideal": round(off.median, 4),
                "possible": round(possible, 4),
                "one_digest": one_digest,
                "medians": harness.medians(timings, 1),
                "shares": [round(share, 3) for share in speeds.shares],
            }
    nproc, shards = (int(numbers.split(",")[0]) for numbers in (args.nproc, args.shards))
    say(f"{nproc} equal processes, {shards} shards")
    timings, _, one_digest = measure(
        nproc,
        shards,
        Speeds.choose(nproc, args.slow_by, equal=True),
        steps=steps,
        settling=settling,
        rounds=rounds,
        contenders=(OFF, ON),
        say=say,
    )
    equal = harness.paired_ratio(timings[ON], timings[OFF])
    say(harness.spread_table(timings, "samples/s", {ON: (OFF, equal)}))
    worst = min(found, key=lambda case: found[case]["of_ideal"])
    one_digest = one_digest and all(case["one_digest"] for case in found.values())
    harness.finish(
        {
            "benchmark": "balance",
            "goal": GOAL,
            "goal_equal": GOAL_EQUAL,
            "better": "higher",
            **{f"ratio{end}": found[worst][f"of_ideal{end}"] for end in ("", "_lower95", "_upper95")},
            **harness.ratio_fields(equal, "equal"),
            "one_digest": one_digest,
            "goal_met": found[worst]["of_ideal"] >= GOAL and equal.median >= GOAL_EQUAL and one_digest,
            "medians_samples_per_s": found[worst]["medians"],
            "cases": found,
            "slow_by": args.slow_by,
            "rounds": rounds,
            "quick": args.quick,
            "machine": machine,
            "versions": harness.versions(()),
        }
    )


if __name__ == "__main__":
    main()
