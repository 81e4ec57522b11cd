"""Measures what the digest journal adds to a step: the time of its listener, for models and
batches of a step of about 5 ms.

    python benchmarks/digest_journal.py [--every 1000] [--steps 20000]

The listener is called as the loop calls it, without the training between: its CPU time is a few
microseconds, which would be lost in the noise of a training's steps. The goal, for a process with
one shard, is 0.2 % of a step of 5 ms: 10 µs."""

import tempfile
import time
from pathlib import Path

import _harness as harness
import torch
from torch import nn

from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import plan_step
from lockstep._state.recovery.fingerprint import Fingerprint
from lockstep._state.recovery.run_state import RunState
from lockstep._tools.replay.journal import DigestJournal
from lockstep._tools.verify.trace.lines import DIRECTORY, TraceWriter, file_of
from lockstep._tools.verify.trace.subjects import Subjects

STEP_S = 0.005
GOAL = 0.002


def cost_s(width: int, batch_size: int, num_shards: int, every: int, steps: int) -> tuple[float, float]:
    """Seconds and bytes a step: two layers of this width with Adam, batches of 64 features, and V
    shards in one process."""
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    state, subjects = RunState(), Subjects()
    for item in (model, optimizer):
        state.keep(item)
        subjects.prepared(item)
    data, loss = (torch.randn(batch_size // num_shards, 64),), torch.tensor(0.5)
    plan = plan_step(1, (batch_size,), 0, even_blocks(1, num_shards))
    for micro in plan.micro_batches:
        micro.samples = list(range(micro.rows.start, micro.rows.stop))
    with tempfile.TemporaryDirectory() as directory:
        writer = TraceWriter(Path(directory), "rank-0", is_fresh=False)
        journal = DigestJournal(writer, every, Fingerprint(state), subjects, is_main=True)
        began = time.thread_time()
        for step in range(1, steps + 1):
            journal.begin_step(step)
            journal.begin_phase(0)
            for micro in plan.micro_batches:
                journal.begin_shard(micro)
                journal.received(micro, data)
                journal.before_backward(loss, None)
                journal.end_shard()
            journal.end_phase(0)
            journal.end_step(step, batch_size)
            journal.agreed(step)
        took_s = time.thread_time() - began
        size = (Path(directory) / file_of(DIRECTORY, 0)).stat().st_size
        journal.end_run(steps, failed=False)
    return took_s / steps, size / steps


def main() -> None:
    """Measure, and print a line of JSON."""
    parser = harness.make_parser(__doc__ or "", rounds=3)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20000)
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    steps = 2000 if args.quick else args.steps
    torch.set_num_threads(1)
    rows = []
    for width, batch_size, num_shards in ((256, 64, 1), (256, 64, 4), (512, 256, 1), (512, 256, 4)):
        seconds, size = min(cost_s(width, batch_size, num_shards, args.every, steps) for _ in range(rounds))
        row = {"width": width, "batch": batch_size, "shards": num_shards, "us": 1e6 * seconds, "of_5_ms": seconds / STEP_S}
        rows.append({**row, "bytes_a_step": size})
        say(f"{width} wide, batch {batch_size}, {num_shards} shards: {1e6 * seconds:.1f} µs, {seconds / STEP_S:.2%} of 5 ms")
    worst = max(row["of_5_ms"] for row in rows if row["shards"] == 1)
    harness.finish(
        {
            "benchmark": "digest_journal",
            "quick": args.quick,
            "every": args.every,
            "rows": rows,
            "goal": GOAL,
            "goal_met": worst <= GOAL,
            "machine": harness.machine(),
        }
    )


if __name__ == "__main__":
    main()
