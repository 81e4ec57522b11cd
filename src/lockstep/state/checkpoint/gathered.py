"""Gathering sharded tensors, so that checkpoints hold full tensors from which every strategy can resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lockstep.world.comm.dtensors import full_tensor, is_dtensor

Files = Mapping[str, Mapping[str, Tensor]]
"""The tensors of each file, by name."""


def gather_full(parts: Sequence[Files], rank: int) -> dict[str, dict[str, Tensor]]:
    """This rank's files, with full tensors. Every rank must call it, with equal ``parts``.

    DTensors are gathered one at a time, and copied to the CPU of the rank that writes them.

    Args:
        parts: the files of each rank.
        rank: this process's rank.
    """
    mine: dict[str, dict[str, Tensor]] = {file: dict(tensors) for file, tensors in parts[rank].items()}
    for owner, files in enumerate(parts):
        for file, tensors in files.items():
            for name, tensor in tensors.items():
                if is_dtensor(tensor):
                    full = full_tensor(tensor)
                    if owner == rank:
                        mine[file][name] = full.cpu()
    return mine
