"""Assigning the tensors of a checkpoint to the ranks that write them, and the names of their files.
Pure.

Of a tensor that is cut along its first dimension over the ranks, as by ``fully_shard``, each rank
writes its own rows, under the tensor's name. So a tensor that several files hold consists of the
rows in all of them, in the order of the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_SUFFIX = ".safetensors"


def assign_tensors(sizes: Mapping[str, int], held: list[int]) -> list[list[str]]:
    """The names of tensors for each rank, so that all write about equally much. The same on every
    rank.

    Args:
        sizes: size of each tensor in bytes, by name, in any order.
        held: bytes that each rank must write already.
    """
    load = list(held)
    parts: list[list[str]] = [[] for _ in held]
    # Largest first, each to the least loaded rank: at most 4/3 of the optimum (Graham 1969).
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = load.index(min(load))
        parts[rank].append(name)
        load[rank] += sizes[name]
    return parts


def weights_name(name: str) -> str:
    """The file for the weights of a model of this name (``model``, ``model-2``, ``average``), if
    they are not cut."""
    return name + _SUFFIX


def part_name(file: str, rank: int) -> str:
    """The file for a rank's part of weights that would be in ``file`` if they were not cut."""
    return f"{file.removesuffix(_SUFFIX)}.rank-{rank}{_SUFFIX}"


def state_part_name(rank: int) -> str:
    """The file for a rank's part of all other state."""
    return f"state-{rank}{_SUFFIX}"


def weights_files(file: str, files: Iterable[str]) -> list[str]:
    """Those of a checkpoint's files that hold the weights that are in ``file`` if they are not cut:
    itself, or its parts in the order of the ranks; empty: there are none."""
    pattern = rf"{re.escape(file.removesuffix(_SUFFIX))}\.rank-\d+{re.escape(_SUFFIX)}"
    return sorted((name for name in files if name == file or re.fullmatch(pattern, name)), key=_rank_of)


def state_files(files: Iterable[str]) -> list[str]:
    """Those of a checkpoint's files that hold tensors of all other state, in the order of the
    ranks."""
    return sorted((file for file in files if re.fullmatch(rf"state-\d+{re.escape(_SUFFIX)}", file)), key=_rank_of)


def _rank_of(file: str) -> int:
    return int("0" + "".join(re.findall(rf"-(\d+){re.escape(_SUFFIX)}$", file)))
