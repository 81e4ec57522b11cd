"""Measures the cost of training one model on two processes, compared with two independent
processes.

    python benchmarks/scaling.py

Two processes train one convolutional network with lockstep (strategy ddp), each on half of the
global batch. Alternately, two independent processes train one network each (strategy single) on a
batch of that half: the same work on the same cores, without communication. Each process has one
thread. So the ratio contains the cost of communication and bookkeeping, while the machine's limits
(shared caches, memory, a busy neighbor) affect both.

  ratio   samples per second of the two together / of the two independent ones: HIGHER is better,
          1 is ideal
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import _harness as harness
from _crew import Crew, Crews

GOAL = 0.95
NPROC = 2
TOGETHER, APART = "two together (ddp)", "two independent (single)"


def measure(*, batch: int, steps: int, rounds: int, say: Callable[[str], None]) -> harness.Timings:
    """Samples a second of both pairs in every round."""
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:

        def start(name: str, global_batch: int, run_dir: str, *, independent: bool) -> Callable[[], float]:
            args = ["--steps", str(steps), "--batch", str(global_batch), "--run-dir", f"{scratch}/{run_dir}"]
            args += ["--strategy", "single" if independent else "ddp"]
            crew = crews.start(Crew(name, "cnn.py", args, NPROC, independent=independent))
            # Each process has its own half: a rate for each, added up. (Together they end
            # together.)
            return lambda: sum(batch / NPROC * steps / answer.wall_s for answer in crew.turn())

        turns = {
            APART: start(APART, batch // NPROC, "apart", independent=True),
            TOGETHER: start(TOGETHER, batch, "together", independent=False),
        }
        crews.wait_ready()
        return harness.interleave(turns, rounds, say)


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=30)
    parser.add_argument("--batch", type=int, metavar="N", help="samples in a global batch (default: 64)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a turn, which is an epoch (default: 10)")
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    batch, steps = args.batch or (8 if args.quick else 64), args.steps or (2 if args.quick else 10)
    if batch % NPROC:
        raise SystemExit(f"--batch {batch}: it must be a multiple of {NPROC}, so that both do the same work")
    machine = harness.machine()
    say(f"global batch {batch}, {rounds} rounds of {steps} steps")
    rates = measure(batch=batch, steps=steps, rounds=rounds, say=say)
    ratio = harness.paired_ratio(rates[TOGETHER], rates[APART])
    say(harness.spread_table(rates, "samples/s", {TOGETHER: (APART, ratio)}))
    say("a ratio of throughputs: higher is better")
    harness.finish(
        {
            "benchmark": "scaling",
            "goal": GOAL,
            "better": "higher",
            **harness.ratio_fields(ratio),
            "goal_met": ratio.median >= GOAL,
            "medians_samples_per_s": harness.medians(rates),
            "coverage": round(ratio.coverage, 4),
            "nproc": NPROC,
            "batch": batch,
            "steps": steps,
            **harness.circumstances(args, rounds, machine),
        }
    )


if __name__ == "__main__":
    main()
