"""Files that a script saves itself, in accelerate's format."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import ProjectConfiguration
from safetensors.torch import save_file
from torch import nn

import lockstep
from lockstep._base.errors import UsageError


def folder_of_state(output_dir: Any, project: ProjectConfiguration, number: int) -> Path:
    """Returns the folder for ``save_state``.

    Raises:
        UsageError: no folder was passed, and the project does not number folders.
    """
    if project.automatic_checkpoint_naming and project.project_dir is not None:
        return Path(project.project_dir) / "checkpoints" / f"checkpoint_{number}"
    if output_dir is None:
        raise UsageError(
            "accelerator.save_state() needs a folder. Pass output_dir, or create the Accelerator with "
            "ProjectConfiguration(project_dir=..., automatic_checkpoint_naming=True).",
            code="no-state-folder",
        )
    return Path(output_dir)


def save_state(
    team: lockstep.Team, folder: Path, models: Sequence[nn.Module], others: Iterable[tuple[str, Any]], limit: int | None
) -> None:
    """Writes the states of models and other objects. Every rank must call it; rank 0 writes.

    Args:
        team: the team of this process.
        folder: the folder, which is created if it is missing.
        models: the models, whose weights become ``pytorch_model.bin``, ``pytorch_model_1.bin``, ...
        others: file names with their objects.
        limit: the number of numbered folders to keep; None: all.
    """
    if team.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    files = [(f"pytorch_model{f'_{number}' if number else ''}.bin", model) for number, model in enumerate(models)]
    for name, item in (*files, *others):
        team.save(item.state_dict(), folder / name)
    if team.is_main and limit is not None:
        kept = sorted(folder.parent.glob("checkpoint_*"), key=lambda path: int(path.name.rpartition("_")[2]))
        for stale in kept[:-limit]:
            shutil.rmtree(stale)


def save_model(team: lockstep.Team, model: nn.Module, folder: Path, *, safe: bool) -> None:
    """Writes a model's weights as ``model.safetensors`` or ``pytorch_model.bin``. Every rank must
    call it; rank 0 writes."""
    if team.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    weights = model.state_dict()
    if not safe:
        team.save(weights, folder / "pytorch_model.bin")
    elif team.is_main:
        seen: set[int] = set()
        own = {}
        for name, tensor in weights.items():
            # safetensors refuses tensors that share memory. Tied weights keep their first name.
            if tensor.data_ptr() not in seen or tensor.numel() == 0:
                seen.add(tensor.data_ptr())
                own[name] = tensor.contiguous()
        save_file(own, folder / "model.safetensors", metadata={"format": "pt"})
