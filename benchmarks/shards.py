"""Measures what lockstep adds to the shards of a step, compared with the same micro-batches by hand
and with whole batches.

    python benchmarks/shards.py                   all models, then the first 64 steps
    python benchmarks/shards.py --only cnn        one model
    python benchmarks/shards.py --only resnet50   the first 64 steps

Every model trains with 8 and 64 shards on one process and with 8 on two, 8 samples a shard and one
thread a process. All contenders of a case live in the same processes and take turns in them. With
two processes the others are DistributedDataParallel. Figures are the processor time of single
steps, of which low percentiles tell little of what else the machine does: of the thread that trains
with one process, of all threads with two. Waiting is not in them.

  ratio   lockstep / micro-batches by hand, 10th percentiles of a turn's steps, of the case that is
          furthest from its goal: at most 1.25 for the small CNN, 1.15 for a model whose shard takes
          3 ms or more, and no goal for others; `cases` has all

The first steps are those of a model with 53 BatchNorm layers and images of 4 x 4, so that the host
is all that counts: with one shard beside the plain loop, with two beside two micro-batches by hand,
each in a new process. Figures are medians of several starts, divided by the others' usual step: at
most 2 in the first step, 1.3 in the others."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _harness as harness
from _crew import Crew, Crews

WHOLE, PARTS, OURS = "whole batches", "by hand", "lockstep"
GOAL_CNN, GOAL, SHARD_MS = 1.25, 1.15, 3.0
GOAL_FIRST, GOAL_NEXT = 2.0, 1.3
CASES = {"8 on 1": (8, 1), "64 on 1": (64, 1), "8 on 2": (8, 2)}
"""Shards, and processes."""
STEPS = {"cnn": 16, "resnet18": 10, "transformer": 12, "mlp": 24}
"""Of a turn with 8 shards; with 64 a third of it."""
SAMPLES, WARM_UP = 8, 2
FIRST_MODEL, FIRST_STEPS, FIRST_SAMPLES, STARTS = "resnet50", 64, 4, 7

Times = dict[str, list[list[float]]]
"""For each contender the milliseconds of every step, in each turn."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the contenders of a process have in common."""

    model: str
    shards: int
    nproc: int
    samples: int
    """Of a shard."""
    steps: int
    """Of a turn."""


def run(case: Case, contenders: list[str], turns: int, warm_up: int, say: Callable[[str], None]) -> Times:
    """The contenders' turns, in new processes."""
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:
        options = {
            "model": case.model,
            "shards": case.shards,
            "samples": case.samples,
            "steps": case.steps,
            "warm-up": warm_up,
            "to": f"{scratch}/times",
            "run-dir": f"{scratch}/run",
        }
        args = [f"--{name}={value}" for name, value in options.items()]
        crew = crews.start(Crew(" and ".join(contenders), "sharded.py", [",".join(contenders), *args], case.nproc))
        crew.wait_ready()
        for _ in range(turns):
            crew.turn()
        ranks = [Path(scratch, f"times.{rank}").read_text().splitlines()[-turns:] for rank in range(case.nproc)]
    found: Times = {name: [] for name in contenders}
    for lines in zip(*ranks, strict=True):
        of_ranks = [json.loads(line) for line in lines]
        for name in contenders:
            steps = zip(*(times[name] for times in of_ranks), strict=True)
            found[name].append([statistics.mean(step) / 1e6 for step in steps])
    return found


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]


def measure(name: str, case: Case, turns: int, say: Callable[[str], None]) -> dict[str, Any]:
    """A case's fields of the last line, after its table."""
    times = run(case, [WHOLE, PARTS, OURS], turns, WARM_UP, say)
    # without the first step, which has what a pass begins with
    timings = {who: [percentile(steps[1:], 10) for steps in its] for who, its in times.items()}
    ratio = harness.paired_ratio(timings[OURS], timings[PARTS])
    whole = harness.paired_ratio(timings[OURS], timings[WHOLE])
    rows = []
    for who, its in times.items():
        steps = [step for turn in its for step in turn[1:]]
        against = {WHOLE: whole, PARTS: ratio}.get(who)
        shown = f"{against.median:.3f} [{against.lower95:.3f}, {against.upper95:.3f}]" if against else ""
        rows.append([who, *(f"{percentile(steps, percent):.2f}" for percent in (0, 2, 10, 50)), shown])
    say(f"\n{case.model}, {name}:")
    say(harness.table(["contender", "least ms/step", "p2", "p10", "median", "lockstep / it [95 % bounds]"], rows))
    shard_ms = statistics.median(timings[PARTS]) / (case.shards // case.nproc)
    goal = GOAL_CNN if case.model == "cnn" else GOAL if shard_ms >= SHARD_MS else None
    return {
        "case": f"{case.model}, {name}",
        "goal": goal,
        **harness.ratio_fields(ratio),
        **harness.ratio_fields(whole, "ratio_whole"),
        "goal_met": None if goal is None else ratio.median <= goal,
        "shard_ms": round(shard_ms, 3),
        "medians_ms": harness.medians(timings),
        "coverage": round(ratio.coverage, 4),
    }


def first_steps(starts: int, say: Callable[[str], None]) -> dict[str, Any]:
    """What the last line says of the first steps, after their table."""
    found, columns, header = {}, [[str(number) for number in range(1, FIRST_STEPS + 1)]], ["step"]
    for shards, peer in ((1, WHOLE), (2, PARTS)):
        case = Case(model=FIRST_MODEL, shards=shards, nproc=1, samples=FIRST_SAMPLES // shards, steps=FIRST_STEPS)
        turns: Times = {peer: [], OURS: []}
        for _ in range(starts):
            for who, its in turns.items():
                its += run(case, [who], 1, 0, say)[who]
        theirs, ours = ([statistics.median(step) for step in zip(*turns[who], strict=True)] for who in (peer, OURS))
        usual = statistics.median(theirs[1:])
        ratios = [ms / usual for ms in ours]
        columns += [[f"{value:.2f}" for value in values] for values in (theirs, ours, ratios)]
        header += [f"{peer} ms", f"V = {shards} ms", "of the usual"]
        beyond = {number: round(ratio, 2) for number, ratio in enumerate(ratios[1:], 2) if ratio > GOAL_NEXT}
        found[f"V = {shards}"] = {
            "first": round(ratios[0], 3),
            "first_of_peer": round(theirs[0] / usual, 3),
            "median_of_others": round(statistics.median(ratios[1:]), 3),
            "beyond": beyond,
            "goal_met": ratios[0] <= GOAL_FIRST and not beyond,
            "usual_ms": round(usual, 3),
        }
    say(f"\nThe first steps of {FIRST_MODEL}, medians of {starts} starts:")
    say(harness.table(header, list(zip(*columns, strict=True))))
    return found


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=15)
    parser.add_argument(
        "--only", choices=[*STEPS, FIRST_MODEL], metavar="MODEL", help=f"{', '.join(STEPS)} or {FIRST_MODEL}"
    )
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    machine = harness.machine()
    models = [args.only] if args.only else ["cnn", FIRST_MODEL] if args.quick else [*STEPS, FIRST_MODEL]
    cases = []
    for model in models:
        for name, (shards, nproc) in CASES.items() if model in STEPS else ():
            steps = 3 if args.quick else STEPS[model] // (1 if shards == 8 else 3)
            case = Case(model=model, shards=shards, nproc=nproc, samples=SAMPLES, steps=steps)
            cases.append(measure(name, case, rounds, say))
    first = first_steps(min(rounds, STARTS), say) if FIRST_MODEL in models else {}
    harness.finish(summary(cases, first) | harness.circumstances(args, rounds, machine))


def summary(cases: list[dict[str, Any]], first: dict[str, Any]) -> dict[str, Any]:
    """The last line: of several cases, the one that is furthest from its goal."""
    judged = [case for case in cases if case["goal"]]
    worst = max(judged or cases, key=lambda case: case["ratio"] / (case["goal"] or 1), default={})
    result = {"benchmark": "shards", "better": "lower", **worst}
    if judged:
        result["goal_met"] = all(case["goal_met"] for case in judged)
    if cases:
        result["cases"] = cases
    if first:
        result |= {"goal_first_steps_met": all(it["goal_met"] for it in first.values()), "first_steps": first}
    return result


if __name__ == "__main__":
    main()
