"""Measures the cost of audits, the faults that they find, and their false alarms.

  python benchmarks/audit.py [--runs 20] [--flips 5] [--shards 10000]

cost     the time of an audited step divided by the time of the steps next to it in the same run
         (every second step is audited), less one, and divided by 200: the cost of --audit 200.
         The goal is 1 %.
named    the number of runs of four processes in which the process that always changes one element
         of one gradient was named within two audits. The goal is all.
flips    the same for an element that changes once, in an audited shard. The goal is all.
alarms   the number of alarms in so many audited shards of healthy runs. The goal is none.
"""

import random
import statistics
import tempfile
import time
from pathlib import Path

import _harness as harness
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._base.stopping import AuditFailed
from lockstep._tools.audit.choice import choose

K = 200
GOAL = 0.01
EVERY = 5
"""Steps between audits of the runs with a wrong rank."""
NPROC = 4


def train(
    steps: int, width: int, run_dir: str, wrong: tuple[int, tuple[int, int] | None] | None = None
) -> tuple[str, list[float]]:
    """What the audit has found, and the seconds of each step.

    Args:
        steps: how many.
        width: of the model's layers.
        run_dir: a new directory.
        wrong: the rank that changes its gradient, always or in one shard of one step.
    """
    team = lockstep.join(run_dir=run_dir, progress="off", checkpoint_every="off", on_nan="ignore")
    inputs, targets = torch.randn(4096, 64), torch.randint(10, (4096,))
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(inputs, targets), 256, shuffle=True)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    if wrong is not None and wrong[0] == team.rank:
        parameter = random.Random(team.seed).choice(list(model.parameters()))
        parameter.register_hook(lambda gradient: _changed(gradient, team, wrong[1]))
    took_s: list[float] = []
    began = time.perf_counter()
    try:
        while len(took_s) < steps:
            for batch in loader:
                for x, y in batch.shards:
                    team.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                now = time.perf_counter()
                took_s.append(now - began)
                began = now
                if len(took_s) == steps:
                    break
    except AuditFailed as found:
        return found.headline, took_s
    return "", took_s


def _changed(gradient: torch.Tensor, team: lockstep.Team, place: tuple[int, int] | None) -> torch.Tensor:
    micro = team._loop.phases.micro
    if place is not None and (team.in_audit or micro is None or (team.step, micro.shard) != place):
        return gradient
    gradient = gradient.clone()
    gradient.view(-1)[0] += 1e-4
    return gradient


def run(
    place: Path, nproc: int, steps: int, width: int, audit: int, wrong: object = None, seed: int = 0
) -> list[tuple[str, list[float]]]:
    """``train`` on so many processes; the results by rank."""
    directory = tempfile.mkdtemp(dir=place)
    settings = {"shards": NPROC, "threads": 1, "audit": audit, "seed": seed}
    return lockstep.launch(train, steps, width, f"{directory}/run", wrong, nproc=nproc, **settings)


def main() -> None:
    """Measure, and print a line of JSON."""
    parser = harness.make_parser(__doc__ or "", rounds=3)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--flips", type=int, default=5)
    parser.add_argument("--shards", type=int, default=10_000)
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    num_runs, num_flips, num_shards = (2, 1, 200) if args.quick else (args.runs, args.flips, args.shards)
    with tempfile.TemporaryDirectory() as directory:
        place, dice, costs = Path(directory), random.Random(0), []
        for number in range(rounds):
            [(_, first), *_] = run(place, 2, 60 if args.quick else 600, 512, 2, seed=number)
            # steps count from 1
            plain, audited = (statistics.median(first[start::2]) for start in (20, 21))
            costs.append((audited / plain - 1, plain))
            say(f"an audit takes {costs[-1][0]:.2f} steps of {1e3 * plain:.1f} ms: {costs[-1][0] / K:.2%} of a step at {K}")
        named = 0
        for number in range(num_runs):
            rank = dice.randrange(NPROC)
            [(found, took_s), *_] = run(place, NPROC, 4 * EVERY, 32, EVERY, (rank, None), seed=number)
            named += f": rank {rank} (" in found and " or " not in found and len(took_s) < 2 * EVERY
        say(f"a rank that is always wrong: named in {named} of {num_runs}")
        caught = 0
        for number in range(num_flips):
            seen = choose(seed=number, step=EVERY, every=EVERY, num_filled=NPROC, num_shards=NPROC, world_size=NPROC)
            [(found, _), *_] = run(place, NPROC, 2 * EVERY, 32, EVERY, (seen.owner, (EVERY, seen.shard)), seed=number)
            caught += f": rank {seen.owner} (" in found
        say(f"one flip in an audited shard: found in {caught} of {num_flips}")
        alarms = sum(found != "" for nproc in (1, 2) for found, _ in run(place, nproc, -(-num_shards // 2), 32, 1)[:1])
        say(f"{alarms} alarms in {num_shards} audited shards of healthy runs")
    cost, step_s = statistics.median(cost for cost, _ in costs), statistics.median(step_s for _, step_s in costs)
    harness.finish(
        {
            "benchmark": "audit",
            "quick": args.quick,
            "steps_an_audit": cost,
            "step_ms": 1e3 * step_s,
            "cost_at_200": cost / K,
            "goal": GOAL,
            "named": [named, num_runs],
            "flips": [caught, num_flips],
            "alarms": [alarms, num_shards],
            "goal_met": cost / K <= GOAL and named == num_runs and caught == num_flips and alarms == 0,
            "machine": harness.machine(),
        }
    )


if __name__ == "__main__":
    main()
