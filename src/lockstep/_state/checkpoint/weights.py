"""Reads the weights in a checkpoint, which have the names of the user's model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from lockstep._base.errors import CheckpointError
from lockstep._state.checkpoint.manifest import verify
from lockstep._state.checkpoint.parts import weights_files, weights_name
from lockstep._state.checkpoint.store import find_checkpoint
from lockstep._world.comm.dtensors import cut_like, is_cut, own_rows

Form = Callable[[str], Tensor | None]
"""A function that returns the tensor whose form the named tensor will have, whole or cut over the
ranks; None: unknown."""


def load_weights(path: str | Path, model: str = "model", device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Loads the weights of a model from a checkpoint: a state dict for ``model.load_state_dict``.
    Reading runs no code of the checkpoint.

    Any process may call it, with or without ``join``.

    Args:
        path: a checkpoint directory; a run directory, for its newest checkpoint; ``<run>/best``; or
            a ``.safetensors`` file.
        model: the name of the model: ``model``, ``model-2``, ... in the order of preparation;
            ``average`` for the first ``AveragedModel``.
        device: the device of the returned tensors.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or the model is not in it.
    """
    path = Path(path)
    try:
        if path.is_file():
            return load_file(path, device=str(device))
        directory = find_checkpoint(path)
        manifest = verify(directory)
        files = weights_files(weights_name(model), manifest.files)
        if not files:
            names = [record["name"] for record in manifest.objects if "file" in record]
            raise CheckpointError(
                f"{directory} has no weights of {model!r}; available: {', '.join(names) or 'no model'}", code="model-unknown"
            )
        return {name: tensor.to(device) for name, tensor in Tensors([directory / file for file in files]).items()}
    except SafetensorError as error:
        raise CheckpointError(f"cannot read {path} as safetensors: {error}", code="safetensors-unreadable") from error


class Tensors(Mapping[str, Tensor]):
    """The tensors of several safetensors files by name, each read on access.

    Args:
        files: the files, in the order of the ranks that wrote them. A tensor in several of them
            consists of the rows in all of them.
    """

    def __init__(self, files: list[Path]) -> None:
        try:
            self._open: list[Any] = [safe_open(file, framework="pt") for file in files]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"cannot read {', '.join(map(str, files))} as safetensors: {error}", code="safetensors-unreadable"
            ) from error
        self._files_of: dict[str, list[Any]] = {}
        for file in self._open:
            for name in file.keys():  # noqa: SIM118 - no mapping
                self._files_of.setdefault(name, []).append(file)
        self._form: Form = lambda _: None
        self._prefix = ""

    def formed(self, form: Form, prefix: str = "") -> Tensors:
        """Returns a mapping of the same tensors in the form that they will have. If a tensor will
        be cut over the ranks, only this rank's rows are read.

        Args:
            form: the forms, by names without the prefix.
            prefix: the beginning of the names in the files.
        """
        formed = copy.copy(self)
        formed._form, formed._prefix = form, prefix
        return formed

    def __getitem__(self, name: str) -> Tensor:
        files = self._files_of[name]
        form = self._form(name.removeprefix(self._prefix))
        if is_cut(form) and list(form.shape) == self._shape(name):
            return cut_like(self._rows(name, own_rows(form)), form)
        parts: list[Tensor] = [file.get_tensor(name) for file in files]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _shape(self, name: str) -> list[int]:
        shapes = [file.get_slice(name).get_shape() for file in self._files_of[name]]
        return [sum(shape[0] for shape in shapes), *shapes[0][1:]] if shapes[0] else []

    def _rows(self, name: str, wanted: range) -> Tensor:
        # The files are of the ranks that saved, and ``wanted`` is of a rank now. So a rank may need
        # parts of several files: with 10 rows, rank 1 of 2 reads rows 5 to 9 from the files of
        # ranks 1 and 2 of 3 (rows 4 to 7 and 8 to 9).
        slices, begin = list[Tensor](), 0
        for file in self._files_of[name]:
            part = file.get_slice(name)
            num_rows = part.get_shape()[0]
            low, high = max(wanted.start - begin, 0), min(wanted.stop - begin, num_rows)
            if low < high:
                slices.append(part[low:high])
            begin += num_rows
        # A rank without rows still gets a tensor with the right dtype and columns.
        return torch.cat(slices) if slices else self._files_of[name][0].get_slice(name)[0:0]

    # Mapping's own __contains__ calls __getitem__, which reads the tensor.
    def __contains__(self, name: object) -> bool:
        return name in self._files_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._files_of)

    def __len__(self) -> int:
        return len(self._files_of)
