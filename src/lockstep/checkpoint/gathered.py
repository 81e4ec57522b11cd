"""A checkpoint holds whole tensors, whoever holds parts of them: so every strategy can go on from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lockstep.comm.dtensors import full_tensor, is_dtensor

Files = Mapping[str, Mapping[str, Tensor]]
"""The tensors of each file, by name."""


def gather_full(parts: Sequence[Files], rank: int) -> dict[str, dict[str, Tensor]]:
    """A rank's files, with all of their tensors whole. Every rank must call it, with equal parts.

    Those that lie spread over the ranks are brought together one at a time, and go to the CPU of the rank that writes them.

    Args:
        parts: the files of each rank.
        rank: this one.
    """
    mine: dict[str, dict[str, Tensor]] = {file: dict(tensors) for file, tensors in parts[rank].items()}
    for owner, files in enumerate(parts):
        for file, tensors in files.items():
            for name, tensor in tensors.items():
                if is_dtensor(tensor):
                    found = full_tensor(tensor)
                    if owner == rank:
                        mine[file][name] = found.cpu()
    return mine
