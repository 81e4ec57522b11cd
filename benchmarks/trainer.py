"""Measures the time per step of transformers' Trainer on lockstep, compared with plain Trainer.

    python benchmarks/trainer.py                    all cases
    python benchmarks/trainer.py --cases "1 of 4"   one process that runs four shards; plain Trainer
                                                    accumulates four batches

Both train the same GPT on the same number of sequences per step, with one thread per process and
the same arguments: clipping and a linear schedule, no evaluation, nothing saved. All contenders
are alive throughout, in separate processes, and one runs at a time.

  ratio   seconds per step on lockstep / with plain Trainer, in the worst case: lower is better;
          `cases` has each
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import _harness as harness
from _crew import Crew, Crews

GOAL = 1.1
BATCH = 16
STEPS = {"0.5M": 10, "5M": 2}
"""Of a turn, by the number of parameters."""
CASES = {"1 of 1": (1, 1), "1 of 4": (1, 4), "2 of 2": (2, 2), "2 of 4": (2, 4)}
"""Processes, and shards of a global batch."""
PLAIN, OURS = "plain Trainer", "Trainer + lockstep"


def measure(
    nproc: int, shards: int, size: str, *, steps: int, rounds: int, say: Callable[[str], None]
) -> tuple[harness.Timings, harness.Timings]:
    """Milliseconds of a step in every round: on the clock, and of a process's processor time."""
    cpu: harness.Timings = {PLAIN: [], OURS: []}
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:

        def start(name: str, contender: str) -> Callable[[], float]:
            args = [contender, "--size", size, "--shards", str(shards), "--batch", str(BATCH), "--steps", str(steps)]
            crew = crews.start(Crew(name, "trained.py", [*args, "--dir", f"{scratch}/{contender}"], nproc))

            def turn() -> float:
                answers = crew.turn()
                cpu[name].append(sum(answer.cpu_s for answer in answers) / len(answers) / steps * 1e3)
                return max(answer.wall_s for answer in answers) / steps * 1e3

            return turn

        turns = {PLAIN: start(PLAIN, "plain"), OURS: start(OURS, "lockstep")}
        crews.wait_ready()
        return harness.interleave(turns, rounds, say), cpu


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=20)
    parser.add_argument("--cases", metavar="NAMES", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--sizes", metavar="NAMES", help=f"models, of {', '.join(STEPS)} (default: all)")
    args = parser.parse_args()
    names = (args.cases or ("1 of 4" if args.quick else ",".join(CASES))).split(",")
    sizes = (args.sizes or ("0.5M" if args.quick else ",".join(STEPS))).split(",")
    if unknown := [*(set(names) - CASES.keys()), *(set(sizes) - STEPS.keys())]:
        raise SystemExit(f"{unknown[0]}: choose cases from {', '.join(CASES)}, and sizes from {', '.join(STEPS)}")
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    if not harness.find_peers({"transformers": "transformers", "accelerate": "accelerate"}, say):
        raise SystemExit(77)
    machine = harness.machine()
    cases: dict[str, Any] = {}
    for size in sizes:
        for name in names:
            nproc, shards = CASES[name]
            steps = 2 if args.quick else STEPS[size]
            say(f"\n{size} parameters, {nproc} processes, {shards} shards, {rounds} rounds of {steps} steps")
            timings, cpu = measure(nproc, shards, size, steps=steps, rounds=rounds, say=say)
            ratio = harness.paired_ratio(timings[OURS], timings[PLAIN])
            say(harness.spread_table(timings, "ms a step", {OURS: (PLAIN, ratio)}))
            cases[f"{size}, {name}"] = {
                **harness.ratio_fields(ratio),
                **harness.ratio_fields(harness.paired_ratio(cpu[OURS], cpu[PLAIN]), "ratio_cpu"),
                "medians_ms": harness.medians(timings),
                "coverage": round(ratio.coverage, 4),
            }
    worst = max(cases.values(), key=lambda case: case["ratio"])
    harness.finish(
        {
            "benchmark": "trainer",
            "goal": GOAL,
            "better": "lower",
            **worst,
            "goal_met": worst["ratio"] <= GOAL,
            "cases": cases,
            **harness.circumstances(args, rounds, machine),
            "versions": harness.versions(("transformers", "accelerate")),
        }
    )


if __name__ == "__main__":
    main()
