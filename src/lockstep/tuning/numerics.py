"""Changes that may make steps faster but alter the last bits of an answer: tried and undone, proposed and never applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from lockstep.machine.threads import use_threads


@dataclass(frozen=True, kw_only=True)
class Change:
    """A setting of the process, or a property of its models."""

    name: str
    how: str
    """What to write to get it."""
    do: Callable[[], None]
    undo: Callable[[], None]


def changes(models: Iterable[nn.Module], *, cores: float, on_gpu: bool, world_size: int) -> list[Change]:
    """The changes that make sense for a run."""
    proposals = []
    threads = torch.get_num_threads()
    if not on_gpu:
        for number in sorted({1, max(1, int(cores))} - {threads}):
            proposals.append(
                Change(
                    name=f"{number} thread{'s' if number > 1 else ''} a process",
                    how=f"--threads {number}",
                    do=lambda number=number: _set_threads(number),  # type: ignore[misc]
                    undo=lambda: _set_threads(threads),
                )
            )
    images = [model for model in models if any(isinstance(module, nn.Conv2d) for module in model.modules())]
    # With several processes the gradient buckets were laid out for the model as it was prepared.
    if images and world_size == 1:
        proposals.append(
            Change(
                name="channels last",
                how="model.to(memory_format=torch.channels_last) before team.prepare()",
                do=lambda: _lay_out(images, torch.channels_last),
                undo=lambda: _lay_out(images, torch.contiguous_format),
            )
        )
    return proposals


def _set_threads(number: int) -> None:
    torch.set_num_threads(number)
    use_threads(number)


def _lay_out(models: Iterable[nn.Module], memory_format: torch.memory_format) -> None:
    for model in models:
        model.to(memory_format=memory_format)  # type: ignore[call-overload]
