"""Checks several GPUs: first an error on one rank, which must end the run in seconds; then the same
digest on 1, 2, 4 and 8 processes.

The error comes first, because a run that hangs after one would hang at every other failure as well.
"""

from __future__ import annotations

import functools
import math
import time
from pathlib import Path
from typing import Any

import torch

import lockstep
from gpu.checks.training import train
from gpu.checks.verdict import begin, finish, make_parser
from lockstep._base.errors import LaunchError

SECONDS = 30.0
"""From an error to the end of the run, on a card: less than any time limit of NCCL's."""
RAISED = "raised"  # a file of the run's directory: when


class PlantedError(Exception):
    """Raised by one rank."""


def fail(num_shards: int) -> None:
    """A rank's script: the last rank raises in its third step, while the others wait for its
    gradients."""
    with lockstep.join() as team:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = team.prepare(model, optimizer, [torch.ones(num_shards, 64)] * 6)
        for batch in loader:
            for inputs in batch.shards:
                if team.step == 3 and team.rank == team.world_size - 1:
                    Path(RAISED).write_text(repr(time.time()), encoding="utf-8")
                    raise PlantedError("planted")
                team.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()


def seconds_after_an_error(nproc: int, settings: dict[str, Any]) -> tuple[float, str]:
    """Returns how long the run continued after the error, and its exit status."""
    Path(RAISED).unlink(missing_ok=True)
    try:
        lockstep.launch(fail, nproc, nproc=nproc, shards=nproc, **settings)
    except LaunchError as error:
        return time.time() - float(Path(RAISED).read_text(encoding="utf-8")), str(error)
    return math.nan, ""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--num-devices",
        type=int,
        required=True,
        metavar="N",
        help="number of GPUs of this machine, and the largest number of processes",
    )
    args = begin(parser)
    settings = {"device": args.device, "threads": 1, "progress": "off", "checkpoint_every": "off"}
    problems: list[str] = []
    seconds, error = seconds_after_an_error(args.num_devices, settings)
    found: dict[str, Any] = {"seconds from the error to the end": seconds, "error": error[:2000]}
    print(found, flush=True)
    if PlantedError.__name__ not in error:
        problems.append(f"an error on one rank of {args.num_devices} is not what the run ended with")
    if args.device == "cuda" and seconds > SECONDS:
        problems.append(f"after an error on one rank the run continued for {seconds:.0f} s")
    worlds = [nproc for nproc in (1, 2, 4, 8) if nproc <= args.num_devices]
    for task in ("cnn", "gpt"):
        script = functools.partial(train, task, 3 if args.tiny else 6, tiny=args.tiny)
        digests = {}
        for nproc in worlds:
            ranks = lockstep.launch(script, nproc=nproc, shards=worlds[-1], **settings)
            digests[f"W = {nproc}"] = sorted({rank.digest for rank in ranks})
        found[task] = digests
        print(task, digests, flush=True)
        if len({digest for ranks in digests.values() for digest in ranks}) > 1:
            problems.append(f"{task}, V = {worlds[-1]}: the digests differ")
    finish(args, found, problems)


if __name__ == "__main__":
    main()
