r"""The fixed binary tree over shard numbers in which everything that must be bit-identical is
summed.

Its leaves are the shards. A node of size ``s`` (a power of two) stands for the shards ``[a, a+s)``
with ``a`` a multiple of ``s``, and is the sum of its two halves; a half without leaves is skipped,
not added as zeros. So the order of additions depends on the shard numbers alone. A process with the
shards ``[a, b)`` can sum only whole subtrees, which leaves the ``roots`` of its block: one if the
block is aligned, and otherwise at most ``2 log2(b - a)`` of them. Given the roots of all processes,
the summation continues in the same way, and the remaining nodes are folded from the right.

Six shards, here on two processes and on three::

                  (((0+1)+(2+3))+(4+5))
                 /                     \
         ((0+1)+(2+3))                  |
          /         \                   |
      (0+1)       (2+3)               (4+5)
      /   \       /   \               /   \
     0     1     2  :  3             4     5

    2 processes:  0 1 2 : 3 4 5      roots  (0+1) 2  :  3 (4+5)
    3 processes:  0 1 : 2 3 : 4 5    roots  (0+1)  :  (2+3)  :  (4+5)

With two processes the node (2+3) has one child on each, so it and the nodes above it are summed
when the processes exchange their roots; with three, only the nodes above the roots are. The
brackets, and with them the bits, are the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
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
    """Pushes a node on the stack, and sums complete subtrees.

    Args:
        stack: nodes in ascending order of shards.
        node: the next node; its shards come after all those on the stack.
        add: returns the sum of a left and a right value.
    """
    stack.append(node)
    # Like carrying in a binary counter: after n leaves of a block that begins at 0, the sizes on
    # the stack are the powers of two that add up to n. So memory is needed for log2(n) + 1 nodes,
    # not n.
    while len(stack) > 1:
        left, right = stack[-2], stack[-1]
        if not _are_siblings((left.start, left.size), (right.start, right.size)):
            return
        stack[-2:] = [Node(left.start, 2 * left.size, add(left.value, right.value))]


def fold(stack: list[Node[T]], add: Callable[[T, T], T]) -> T:
    """Returns the value of the root. The last leaves may be missing (V is not a power of two, or
    the last shards are empty).

    Args:
        stack: the stack after the last ``push``; not empty. It is consumed.
        add: returns the sum of a left and a right value.
    """
    # From the right, because a missing half is skipped: with seven leaves the nodes left are of
    # sizes 4, 2 and 1, and the tree over them is 4 + (2 + 1): leaf 7 is missing next to leaf 6.
    total = stack.pop().value
    while stack:
        total = add(stack.pop().value, total)
    return total


def sum_siblings(roots: Iterable[Iterable[tuple[int, int]]], values: Iterable[T], add: Callable[[T, T], T]) -> list[Node[T]]:
    """Returns the nodes that remain after summing what adjacent processes have.

    Args:
        roots: for each process, in order, its ``roots``.
        values: the value of each of these subtrees, in the same order.
        add: returns the sum of a left and a right value.
    """
    stack: list[Node[T]] = []
    for (start, size), value in zip(itertools.chain.from_iterable(roots), values, strict=True):
        push(stack, Node(start, size, value), add)
    return stack


def sum_subtrees(roots: Iterable[Iterable[tuple[int, int]]], values: Iterable[T], add: Callable[[T, T], T]) -> T:
    """Returns the sum over all shards. The arguments are as for ``sum_siblings``, of all
    processes."""
    return fold(sum_siblings(roots, values, add), add)


def halvings(roots: Iterable[Iterable[tuple[int, int]]]) -> tuple[int, list[tuple[int, int]]]:
    """Returns how often all nodes can be summed in pairs, the first with the second, the third with
    the fourth, and so on; and the nodes that remain.

    Args:
        roots: as for ``sum_siblings``.
    """
    nodes, number = list(itertools.chain.from_iterable(roots)), 0
    # A left child is summed with its sibling before anything else, so pairs of siblings may go
    # first, all together: the tree is the same.
    while len(nodes) > 1 and len(nodes) % 2 == 0 and all(map(_are_siblings, nodes[::2], nodes[1::2])):
        nodes, number = [(start, 2 * size) for start, size in nodes[::2]], number + 1
    return number, nodes


def _are_siblings(left: tuple[int, int], right: tuple[int, int]) -> bool:
    (start, size), (next_start, next_size) = left, right
    # Equal and adjacent is not enough: 1 and 2 are so, but belong to different parents.
    return size == next_size and start + size == next_start and start % (2 * size) == 0


def roots(shards: range) -> list[tuple[int, int]]:
    """Starts and size of each subtree that remains after summing these shards, in order."""
    stack: list[Node[None]] = []
    for shard in shards:
        push(stack, Node(shard, 1, None), lambda _left, _right: None)
    return [(node.start, node.size) for node in stack]
