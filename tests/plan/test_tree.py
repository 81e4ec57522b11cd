"""Promises of the tree: it is the same one for every number of processes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep._plan.blocks import block
from lockstep._plan.tree import Node, fold, push, roots

pytestmark = pytest.mark.timeout(30)

shards = st.integers(1, 130)
worlds = st.tuples(shards, shards).map(lambda pair: (min(pair), max(pair)))  # world size, shards
quick = settings(deadline=None, max_examples=50)


def bracket(left, right):
    """A sum that shows in which order it was made."""
    return f"({left} {right})"


def stack_of(owned, leaf):
    stack = []
    for shard in owned:
        push(stack, Node(shard, 1, leaf(shard)), bracket)
    return stack


def add_up(world_size, num_shards, num_filled):
    """As processes do: each its own block, then everything in rank order."""
    stack = []
    for rank in range(world_size):
        own = block(rank, world_size, num_shards)
        for node in stack_of(range(own.start, min(own.stop, num_filled)), str):
            push(stack, node, bracket)
    return fold(stack, bracket)


def by_definition(start, size, num_filled):
    """The tree from its root down: a node is the sum of its halves, and an empty half is left
    out."""
    if size == 1:
        return str(start)
    left = by_definition(start, size // 2, num_filled)
    middle = start + size // 2
    return left if middle >= num_filled else bracket(left, by_definition(middle, size // 2, num_filled))


@quick
@given(worlds, shards)
def test_every_number_of_processes_adds_up_the_tree_that_the_definition_draws(world, num_filled):
    world_size, num_shards = world
    num_filled = min(num_filled, num_shards)
    size = 1 << (num_shards - 1).bit_length()
    assert add_up(world_size, num_shards, num_filled) == by_definition(0, size, num_filled)


@quick
@given(worlds)
def test_a_process_is_left_with_few_whole_subtrees(world):
    world_size, num_shards = world
    for rank in range(world_size):
        own = block(rank, world_size, num_shards)
        nodes = roots(own)
        assert [shard for start, size in nodes for shard in range(start, start + size)] == list(own)
        assert all(start % size == 0 and size & (size - 1) == 0 for start, size in nodes)
        assert len(nodes) <= max(1, 2 * (len(own).bit_length()))
        if len(own) & (len(own) - 1) == 0 and own.start % len(own) == 0:
            assert len(nodes) == 1


def test_a_block_that_is_not_aligned_is_cut_where_the_tree_is():
    assert roots(range(2, 5)) == [(2, 2), (4, 1)]
    assert roots(range(5, 8)) == [(5, 1), (6, 2)]
    assert roots(range(8)) == [(0, 8)]
    assert roots(range(1, 7)) == [(1, 1), (2, 2), (4, 2), (6, 1)]
