"""Reading the weights in a checkpoint, which have the names of the user's model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from lockstep.base.errors import CheckpointError
from lockstep.state.checkpoint.manifest import verify
from lockstep.state.checkpoint.store import find_checkpoint


def weights_name(name: str) -> str:
    """The file for the weights of a model of this name (``model``, ``model-2``, ``average``)."""
    return f"{name}.safetensors"


def load_weights(path: str | Path, model: str = "model", device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Load the weights of a model from a checkpoint: a state dict for ``model.load_state_dict``. No code is executed.

    Any process may call it, whether or not it has joined a run.

    Args:
        path: a checkpoint directory; a run directory, for its newest checkpoint; ``<run>/best``; or a ``.safetensors`` file.
        model: the name of the model: ``model``, ``model-2``, ... in the order of preparation; ``average`` for the first
            ``AveragedModel``.
        device: the device of the returned tensors.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or it has no such model.
    """
    path = Path(path)
    try:
        if path.is_file():
            return load_file(path, device=str(device))
        directory = find_checkpoint(path)
        manifest = verify(directory)
        if weights_name(model) not in manifest.files:
            names = [record["name"] for record in manifest.objects if "file" in record]
            raise CheckpointError(f"{directory} has no weights of {model!r}: there is {', '.join(names) or 'no model'}")
        return load_file(directory / weights_name(model), device=str(device))
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


class Tensors(Mapping[str, Tensor]):
    """The tensors of several safetensors files by name, each read on access.

    Args:
        files: the files, without common names.
    """

    def __init__(self, files: list[Path]) -> None:
        try:
            self._open: list[Any] = [safe_open(file, framework="pt") for file in files]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{', '.join(map(str, files))} cannot be read as safetensors: {error}") from error
        self._file_of = {name: file for file in self._open for name in file.keys()}  # noqa: SIM118 - no mapping

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)
