"""The training that most checks run: the script of a rank, which returns a digest of everything
that it has learned."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lockstep
from gpu.checks.models import TASKS
from lockstep._world.comm.dtensors import full_tensor

DIES_IN = 5
"""The step, from 1, in which a rank dies."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What one rank knows of a training."""

    digest: str
    """Of weights, buffers and momentum."""
    losses: list[float]
    """The means of the steps."""
    samples: str
    """A digest of which samples this rank's shards had, in what order: not of the numbers of a
    device."""
    device: str
    first_step: int
    """The first step of this launch, from 1."""


def digest(tensors: Mapping[str, Tensor]) -> str:
    text = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        text.update(name.encode())
        text.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return text.hexdigest()[:16]


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights, buffers, and what the optimizer keeps: all of it on every rank, also of ``fsdp``."""
    state = dict(model.state_dict())
    for index, slots in optimizer.state_dict()["state"].items():
        state |= {f"optimizer {index} {name}": value for name, value in slots.items() if isinstance(value, Tensor)}
    return {name: full_tensor(value) for name, value in state.items()}


def train(
    task: str,
    num_steps: int,
    *,
    tiny: bool,
    deterministic: bool = True,
    dropout: float = 0.2,
    dies_after: Path | None = None,
    **settings: Any,
) -> Trained:
    """A rank's script: so many steps with momentum, a loss that is read in each.

    Args:
        task: a name in ``TASKS``.
        num_steps: in one epoch.
        tiny: whether to train the small model.
        deterministic: whether kernels must be.
        dropout: of the model.
        dies_after: a file; once it exists, the last rank kills itself in its step ``DIES_IN``.
        settings: of ``lockstep.join``.
    """
    if not deterministic:
        settings["allow"] = ["numerics"]
    with lockstep.join(**settings) as team:
        made = TASKS[task](num_steps, tiny=tiny, dropout=dropout)
        optimizer = torch.optim.SGD(made.model.parameters(), lr=0.001, momentum=0.9)
        model, optimizer, loader = team.prepare(made.model, optimizer, made.batches)
        losses, samples, first_step = [], hashlib.sha256(), 0
        for _ in team.epochs(1):
            for batch in loader:
                first_step = first_step or team.step
                for inputs, targets in batch.shards:
                    if dies_after is not None and team.step == DIES_IN and team.rank == team.world_size - 1:
                        while not dies_after.exists():
                            time.sleep(0.01)
                        os.kill(os.getpid(), signal.SIGKILL)
                    samples.update(inputs.cpu().numpy().tobytes())
                    loss = made.loss(model, (inputs, targets))
                    team.backward(loss)
                    batch.add(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(batch["loss"]))
        return Trained(
            digest=digest(state_of(model, optimizer)),
            losses=losses,
            samples=samples.hexdigest()[:16],
            device=str(team.device),
            first_step=first_step,
        )
