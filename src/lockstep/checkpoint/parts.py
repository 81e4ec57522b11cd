"""Who writes what: the tensors of a checkpoint, dealt out to the ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def deal_out(sizes: Mapping[str, int], held: list[int]) -> list[list[str]]:
    """Names for each rank, so that all have about the same to write. The same on every rank.

    Args:
        sizes: bytes of each tensor, by name; the order does not matter.
        held: bytes that each rank has to write already.
    """
    load = list(held)
    parts: list[list[str]] = [[] for _ in held]
    # The largest first, each to who has least: never worse than 4/3 of the best (Graham 1969).
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = load.index(min(load))
        parts[rank].append(name)
        load[rank] += sizes[name]
    return parts
