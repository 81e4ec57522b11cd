"""The training that most checks run: the script of a rank, which returns a digest of everything
that it has learned."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import lockstep
from gpu.checks.models import TASKS


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


def digest(tensors: Mapping[str, Tensor]) -> str:
    text = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        text.update(name.encode())
        text.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return text.hexdigest()[:16]


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights, buffers, and what the optimizer keeps."""
    state = dict(model.state_dict())
    for index, slots in optimizer.state_dict()["state"].items():
        state |= {f"optimizer {index} {name}": value for name, value in slots.items() if isinstance(value, Tensor)}
    return state


def train(
    task: str, num_steps: int, *, tiny: bool, deterministic: bool = True, dropout: float = 0.2, **settings: Any
) -> Trained:
    """A rank's script: so many steps with momentum, a loss that is read in each."""
    if not deterministic:
        settings["allow"] = ["numerics"]
    with lockstep.join(**settings) as team:
        made = TASKS[task](num_steps, tiny=tiny, dropout=dropout)
        optimizer = torch.optim.SGD(made.model.parameters(), lr=0.001, momentum=0.9)
        model, optimizer, loader = team.prepare(made.model, optimizer, made.batches)
        losses, samples = [], hashlib.sha256()
        for batch in loader:
            for inputs, targets in batch.shards:
                samples.update(inputs.cpu().numpy().tobytes())
                loss = made.loss(model, (inputs, targets))
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(batch["loss"]))
        learned = digest(state_of(model, optimizer))
        return Trained(digest=learned, losses=losses, samples=samples.hexdigest()[:16], device=str(team.device))
