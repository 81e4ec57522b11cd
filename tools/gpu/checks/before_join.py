"""Multiplies two matrices on the device before ``lockstep.join()`` and after it, without
CUBLAS_WORKSPACE_CONFIG in the environment.

If PyTorch looks for the variable at the first product of a process only, the products after
``join()`` are errors, although it has set the variable.
"""

from __future__ import annotations

import os
from typing import Any

import torch

import lockstep
from gpu.checks.verdict import begin, device_of, finish, make_parser

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def product(device: torch.device) -> float:
    return float((torch.ones(32, 32, device=device) @ torch.ones(32, 32, device=device)).sum())


def main() -> None:
    args = begin(make_parser(__doc__))
    os.environ.pop(VARIABLE, None)  # the series sets it for all stages
    found: dict[str, Any] = {"torch": torch.__version__, "before join": product(device_of(args.device))}
    problems: list[str] = []
    try:
        with lockstep.join(device=args.device, shards=2, progress="off", checkpoint_every="off") as team:
            found[VARIABLE] = os.environ.get(VARIABLE)
            found["after join"] = product(team.device)
    except (RuntimeError, lockstep.LockstepError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
        if not isinstance(error, lockstep.LockstepError):
            problems.append(f"a product before join() makes those after it an error of PyTorch: {error}")
    finish(args, found, problems)


if __name__ == "__main__":
    main()
