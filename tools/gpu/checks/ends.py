"""Checks how runs on several GPUs end: after an error on one rank, and after a rank that sleeps for
longer than ``--timeout``. Both must end the run in seconds with a Python error, and not with the
SIGABRT of NCCL's watchdog. Kernels and collectives of the other ranks are running at that moment.
"""

from __future__ import annotations

import functools
import math
import time
from pathlib import Path
from typing import Any

import torch

import lockstep
from gpu.checks.verdict import add_num_devices, begin, finish, make_parser
from lockstep._base.errors import LaunchError, PeerError

SECONDS = 30.0
"""From the cause, or from the time limit, to the end of the run on a GPU: less than any time limit
of NCCL's."""
TIMEOUTS_S = {False: 15.0, True: 3.0}
"""Of the run with a rank that sleeps, by whether the check is tiny."""
CAUSED = "caused"  # a file of the run's directory: when


class PlantedError(Exception):
    """Raised by one rank."""


def fail(num_shards: int, *, sleeps_s: float | None) -> None:
    """A rank's script: in its third step, the last rank raises or sleeps, while the others wait for
    its gradients."""
    with lockstep.join() as team:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = team.prepare(model, optimizer, [torch.ones(num_shards, 64)] * 6)
        for batch in loader:
            for inputs in batch.shards:
                if team.step == 3 and team.rank == team.world_size - 1:
                    Path(CAUSED).write_text(repr(time.time()), encoding="utf-8")
                    if sleeps_s is None:
                        raise PlantedError("planted")
                    time.sleep(sleeps_s)
                team.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()


def seconds_to_the_end(nproc: int, sleeps_s: float | None, settings: dict[str, Any]) -> tuple[float, str]:
    """Returns how long the run continued after the cause, and the error that it ended with."""
    Path(CAUSED).unlink(missing_ok=True)
    try:
        lockstep.launch(functools.partial(fail, sleeps_s=sleeps_s), nproc, nproc=nproc, shards=nproc, **settings)
    except LaunchError as error:
        return time.time() - float(Path(CAUSED).read_text(encoding="utf-8")), str(error)
    return math.nan, ""


def main() -> None:
    args = begin(add_num_devices(make_parser(__doc__)))
    settings = {"device": args.device, "threads": 1, "progress": "off", "checkpoint_every": "off"}
    timeout_s = TIMEOUTS_S[args.tiny]
    # On the simulated device collectives are Gloo's, which end by an error of PyTorch.
    late = "Timed out" if args.device == "auto" else PeerError.__name__
    found: dict[str, Any] = {}
    problems: list[str] = []
    for cause, sleeps_s, expected, limit_s in (
        ("an error on one rank", None, PlantedError.__name__, 600.0),
        ("a rank that sleeps", 10 * timeout_s, late, timeout_s),
    ):
        seconds, error = seconds_to_the_end(args.num_devices, sleeps_s, {**settings, "timeout_s": limit_s})
        found[cause] = {"seconds to the end": seconds, "--timeout": limit_s, "error": error[:4000]}
        print(cause, found[cause], flush=True)
        if expected not in error or "SIGABRT" in error:
            problems.append(f"{cause}: the run did not end with {expected}")
        if args.device == "cuda" and not seconds < SECONDS + (0.0 if sleeps_s is None else timeout_s):
            problems.append(f"{cause}: the run continued for {seconds:.0f} s")
    finish(args, found, problems)


if __name__ == "__main__":
    main()
