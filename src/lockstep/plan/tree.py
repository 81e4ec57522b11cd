"""The one binary tree over shard numbers in which everything that must be equal to the bit is added up.

Its leaves are the shards. A node of size ``s`` (a power of two) stands for the shards ``[a, a+s)`` with ``a`` a multiple
of ``s``, and is the sum of its two halves; a half without leaves is skipped, not added as zeros. So the order of
additions is fixed by the shard numbers alone. A process that has the shards ``[a, b)`` can add only whole subtrees: what
it is left with are the ``roots`` of its block, at most ``2 log2(b - a)`` of them, and one if the block is aligned. Whoever
has the roots of all processes adds on in the same way, and folds what is left at the end from the right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Node(Generic[T]):
    """The sum over the shards ``[start, start + size)``."""

    start: int
    size: int
    value: T


def push(stack: list[Node[T]], node: Node[T], add: Callable[[T, T], T]) -> None:
    """Put a node on the stack, and add up what is complete.

    Args:
        stack: nodes of shards in ascending order.
        node: the next one: its shards come after all those on the stack.
        add: the sum of a left and a right value.
    """
    stack.append(node)
    while len(stack) > 1:
        left, right = stack[-2], stack[-1]
        if left.size != right.size or left.start + left.size != right.start or left.start % (2 * left.size):
            return
        stack[-2:] = [Node(left.start, 2 * left.size, add(left.value, right.value))]


def fold(stack: list[Node[T]], add: Callable[[T, T], T]) -> T:
    """The root of the tree, whose last leaves may be missing (V is no power of two, or the last shards are empty).

    Args:
        stack: what ``push`` has left after the last node; not empty. It is used up.
        add: the sum of a left and a right value.
    """
    total = stack.pop().value
    while stack:
        total = add(stack.pop().value, total)
    return total


def roots(shards: range) -> list[tuple[int, int]]:
    """Start and size of each subtree that a process with these shards is left with, in order."""
    stack: list[Node[None]] = []
    for shard in shards:
        push(stack, Node(shard, 1, None), lambda _left, _right: None)
    return [(node.start, node.size) for node in stack]
