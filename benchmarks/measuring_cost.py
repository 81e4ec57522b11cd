"""Measures the cost per step of splitting a step's time into parts and of looking for slow ranks.

    python benchmarks/measuring_cost.py

All measurements of a step are made as a run makes them, for one process of 1, 2, 8 and 256 with one
shard each, without the training: microseconds of processor time per step. They need no extra
message (the numbers travel with the numbers of the phase), so this is the entire cost. The goal is
for up to 8 processes.

  ratio   microseconds per step of the most expensive case / 10: lower is better
"""

from __future__ import annotations

import time
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import _harness as harness
import torch

from lockstep._events.measure.step_clock import (
    BEGINNING,
    ENDING,
    IN_BACKWARD,
    IN_FORWARD,
    IN_SCRIPT,
    LOADING,
    OverlapTimer,
    StepClock,
)
from lockstep._listener import Listeners
from lockstep._tools.explain.slow_ranks import SlowRanks

GOAL = 1.0
ALLOWED_US = 10.0
WORLD_SIZES = (1, 2, 8)
MANY = 256


def turn(world_size: int, num_steps: int) -> float:
    """Microseconds of processor time a step."""
    reports: list[Any] = []
    slow_ranks = SlowRanks(may_judge=True, tell=reports.append)
    clock = StepClock(SimpleNamespace(pause_s=0.0), torch.device("cpu"))
    clock.tell = slow_ranks.add
    told = Listeners([clock, OverlapTimer(clock, SimpleNamespace(waited_s=0.0))])
    optimizer = torch.optim.SGD([torch.zeros(1)])
    told.begin_pass(0, 1, num_steps, 0)
    began = time.thread_time()
    for step in range(num_steps):
        told.begin_step(step)
        for activity in (BEGINNING, IN_FORWARD, IN_BACKWARD):  # as the loop does
            clock.mark((activity, perf_counter()))
        clock.mark((IN_SCRIPT, perf_counter()))
        told.after_backward()
        clock.mark((ENDING, perf_counter()))
        if world_size > 1:
            clock.receive([clock.report(8)] * world_size)
        told.end_phase(0)
        told.before_optimizer(optimizer)
        clock.after_optimizer()
        told.end_step(step, 8 * world_size)
        clock.mark((LOADING, perf_counter()))
    spent = time.thread_time() - began
    assert not reports
    return spent / num_steps * 1e6


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=9)
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    num_steps = 2_000 if args.quick else 20_000
    sizes = {f"{size} processes": size for size in (*WORLD_SIZES, MANY)}
    turns = {name: lambda size=size: turn(size, num_steps) for name, size in sizes.items()}
    timings = harness.interleave(turns, rounds, say)
    say(harness.spread_table(timings, "µs/step", {}, digits=2))
    judged = [times for name, times in timings.items() if sizes.get(name) != MANY]
    ratios = [harness.median_bounds([us / ALLOWED_US for us in times]) for times in judged]
    worst = max(ratios, key=lambda ratio: ratio.median)
    harness.finish(
        {
            "benchmark": "measuring_cost",
            "goal": GOAL,
            "better": "lower",
            **harness.ratio_fields(worst),
            "goal_met": worst.median <= GOAL,
            "medians_us": harness.medians(timings),
            "coverage": round(worst.coverage, 4),
            **harness.circumstances(args, rounds, harness.machine()),
        }
    )


if __name__ == "__main__":
    main()
