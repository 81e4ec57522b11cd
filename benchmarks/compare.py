"""Measures how often `lockstep compare` reports a difference between two identical rows.

    python benchmarks/compare.py

One comparison runs one row many times, as `lockstep compare` runs it: a separate command, with its
start and three seconds of training. Each six successive runs count as a comparison of two identical
rows, A and B, in the three rounds that the command makes by default: A B, B A, A B. A comparison is
false if its 95 % interval does not include 1. (Comparisons that share runs are not independent,
which does not change their expected number.)

  false_differences   the share of false comparisons: the interval promises 0.05
  half_width          the median half width of the interval of the speed-up: smaller differences
                      are noise to three rounds
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import _harness as harness

from lockstep._tools.compare import compare
from lockstep._tools.compare.confidence import Interval, interval_of
from lockstep._tools.compare.methods import parse_methods
from lockstep._tools.trials import machine
from lockstep._tools.trials.study import Task
from lockstep._world.machine.cores import num_cores

SCRIPT = """
import sys, torch, lockstep
from torch.utils.data import DataLoader, TensorDataset

team = lockstep.join()
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(2048, 128, generator=generator)
model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 64, shuffle=True)
model, optimizer, loader = team.prepare(model, optimizer, loader)
for epoch in team.epochs(int(sys.argv[1])):
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        team.log(loss=batch["loss"])
"""
ROUNDS = 3


class Spoken:
    """An observer that prints the result of each run."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def started(self, what: str, left_s: float | None = None) -> None:
        self.what = what

    def waiting(self, elapsed_s: float) -> None:
        pass

    def ended(self, outcome: str) -> None:
        self.say(f"{self.what}: {outcome}")


def comparisons(speeds: list[float]) -> list[Interval]:
    """The intervals of the speed-up of one row over its like, of each six runs in succession."""
    found = []
    for first in range(len(speeds) - 2 * ROUNDS + 1):
        pairs = [speeds[first + 2 * number : first + 2 * number + 2] for number in range(ROUNDS)]
        ratios = [a / b if number % 2 == 0 else b / a for number, (a, b) in enumerate(pairs)]
        interval = interval_of(ratios)
        assert interval is not None
        found.append(interval)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="number of runs (default: 100)")
    parser.add_argument("--epochs", type=int, default=30, metavar="N", help="epochs per run (default: 30)")
    parser.add_argument("--quick", action="store_true", help="six runs: only check that it works")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    args = parser.parse_args()
    if args.runs < 2 * ROUNDS:
        parser.error(f"--runs {args.runs}: a comparison takes {2 * ROUNDS}")
    say, here = harness.speaker(args), harness.machine()
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "train.py")
        script.write_text(SCRIPT)
        task = Task(script=script, args=("2" if args.quick else str(args.epochs),))
        looked = machine.look(num_cores=num_cores(), num_gpus=0)
        rounds = 2 * ROUNDS if args.quick else args.runs
        planned = compare.plan(task, parse_methods("single"), (1,), looked, rounds=rounds)
        (row,) = compare.run(planned.begin(Path(scratch, "comparison")), Spoken(say)).rows
    if row.failure is not None:
        raise SystemExit(f"{row.reason}\n{row.failure.error}")
    speeds = [row.measured[number].samples_per_s for number in sorted(row.measured)]
    intervals = comparisons(speeds)
    different = sum(not interval.has(1.0) for interval in intervals)
    half_width = statistics.median(interval.half_width for interval in intervals)
    say(f"\n{len(intervals)} comparisons of two identical rows: {different} called different")
    say(f"95 % interval of the speed-up: ±{half_width:.1f} % (median)")
    harness.finish(
        {
            "benchmark": "compare",
            "goal": 0.05,
            "better": "lower",
            "runs": len(speeds),
            "comparisons": len(intervals),
            "false_differences": different / len(intervals),
            "half_width": round(half_width, 2),
            "goal_met": different / len(intervals) <= 0.05,
            "row": dataclasses.asdict(row.row),
            "versions": harness.versions(("torch",)),
            "machine": here,
        }
    )


if __name__ == "__main__":
    main()
