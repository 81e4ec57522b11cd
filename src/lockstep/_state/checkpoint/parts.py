"""Assigns the tensors of a checkpoint to the ranks that write them, and names their files. Pure.

If a tensor is cut along its first dimension over the ranks (by ``fully_shard``), each rank writes
its own rows under the tensor's name::

    model.rank-0.safetensors    weight: rows 0 to 4
    model.rank-1.safetensors    weight: rows 5 to 9     weight = both, in the order of the ranks

So no rank needs the memory for a whole tensor, and any other number of ranks can read the rows that
it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_SUFFIX = ".safetensors"


def assign_tensors(sizes: Mapping[str, int], held: list[int]) -> list[list[str]]:
    """Returns the names of the tensors that each rank writes, so that all ranks write about equally
    much. The result is the same on every rank, without a message.

    Args:
        sizes: the size of each tensor in bytes, by name, in any order.
        held: the number of bytes that each rank must write anyway.
    """
    load = list(held)
    parts: list[list[str]] = [[] for _ in held]
    # Largest first, each to the least loaded rank: at most 4/3 of the optimum (Graham 1969).
    # Equal sizes go by name, and equal loads to the lowest rank, so that all ranks agree.
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = load.index(min(load))
        parts[rank].append(name)
        load[rank] += sizes[name]
    return parts


def weights_name(name: str) -> str:
    """Returns the file for the uncut weights of a model of this name (``model``, ``model-2``,
    ``average``)."""
    return name + _SUFFIX


def part_name(file: str, rank: int) -> str:
    """Returns the file for a rank's rows of weights that would be in ``file`` if they were not
    cut."""
    return f"{file.removesuffix(_SUFFIX)}.rank-{rank}{_SUFFIX}"


def state_part_name(rank: int) -> str:
    """Returns the file for a rank's part of all other state."""
    return f"state-{rank}{_SUFFIX}"


def weights_files(file: str, files: Iterable[str]) -> list[str]:
    """Returns the files of a checkpoint with the weights that uncut would be in ``file``: that
    file, or its parts in the order of the ranks; empty: there are none."""
    pattern = rf"{re.escape(file.removesuffix(_SUFFIX))}\.rank-\d+{re.escape(_SUFFIX)}"
    return sorted((name for name in files if name == file or re.fullmatch(pattern, name)), key=_rank_of)


def state_files(files: Iterable[str]) -> list[str]:
    """Returns the files of a checkpoint with the tensors of all other state, in the order of the
    ranks."""
    return sorted((file for file in files if re.fullmatch(rf"state-\d+{re.escape(_SUFFIX)}", file)), key=_rank_of)


def _rank_of(file: str) -> int:
    # By number: as text, rank 10 would come before rank 2, and rows would be in the wrong order.
    return int("0" + "".join(re.findall(rf"-(\d+){re.escape(_SUFFIX)}$", file)))
