"""Trains a CNN and a GPT twice each, with and without deterministic algorithms, with PyTorch's own
loop and with lockstep's.

Without deterministic algorithms, results may differ, and the check lists the operations that do.
With them, results must not differ; PyTorch raises an error that contains the operation if it has no
deterministic kernel. Which layers raise, and which differ, is listed for some of them.
"""

from __future__ import annotations

from typing import Any

import torch

from gpu.checks import layers, operations
from gpu.checks.models import TASKS
from gpu.checks.training import digest, state_of, train
from gpu.checks.verdict import begin, device_of, finish, make_parser

LOOPS = ("PyTorch's loop", "lockstep's, V = 2")


def plain(task: str, num_steps: int, device: torch.device, *, tiny: bool) -> str:
    """PyTorch's own loop, in bfloat16 where a script would be: the digest of what was learned."""
    made = TASKS[task](num_steps, tiny=tiny)
    torch.manual_seed(1)
    model = made.model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    for inputs, targets in made.batches:
        with torch.autocast(device.type, torch.bfloat16):
            loss = made.loss(model, (inputs.to(device), targets.to(device)))
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return digest(state_of(model, optimizer))


def main() -> None:
    args = begin(make_parser(__doc__))
    device, steps = device_of(args.device), 2 if args.tiny else 4
    settings = {"device": args.device, "shards": 2, "threads": 1, "progress": "off", "checkpoint_every": "off"}
    # else the seed is what this process has used last
    settings |= {"precision": "bf16-mixed", "seed": 1}
    found: dict[str, Any] = {}
    problems: list[str] = []
    for task in TASKS:
        for deterministic in (False, True):
            name = f"{task}, {'deterministic' if deterministic else 'default'}"
            torch.use_deterministic_algorithms(deterministic)
            try:
                by_torch = [plain(task, steps, device, tiny=args.tiny) for _ in range(2)]
                differ = operations.differing(lambda task=task: plain(task, 1, device, tiny=args.tiny))  # type: ignore[misc]
            finally:
                torch.use_deterministic_algorithms(False)
            by_lockstep = [
                train(task, steps, tiny=args.tiny, deterministic=deterministic, **settings).digest for _ in range(2)
            ]
            found[name] = dict(zip(LOOPS, (by_torch, by_lockstep), strict=True))
            found[name] |= {"operations that differ": differ}
            print(name, found[name], flush=True)
            if deterministic:
                problems += [f"{name}: two runs of {loop} differ" for loop in LOOPS if len(set(found[name][loop])) > 1]
    found["layers"] = layers.survey(device, tiny=args.tiny)
    for name, row in found["layers"].items():
        print(f"{name}: {row}", flush=True)
        if row["deterministic"] == layers.DIFFERS:
            problems.append(f"{name}: results differ with deterministic algorithms")
    finish(args, found, problems)


if __name__ == "__main__":
    main()
