"""Assigning the tensors of a checkpoint to the ranks that write them. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def deal_out(sizes: Mapping[str, int], held: list[int]) -> list[list[str]]:
    """The names of tensors for each rank, so that all write about equally much. The same on every rank.

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
