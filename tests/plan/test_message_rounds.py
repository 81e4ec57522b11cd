"""Promises of the rounds: the tree is that of one process, and messages are few."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traffic import elements_sent

from lockstep._plan.blocks import block
from lockstep._plan.rounds import bases, equal_machines, plan_rounds
from lockstep._plan.tree import Node, fold, push, roots, sum_siblings

pytestmark = pytest.mark.timeout(60)

hosts = st.tuples(st.integers(1, 12), st.integers(1, 8))  # hosts, and ranks on each


def bracket(left, right):
    """A sum that shows in which order it was made."""
    return f"({left} {right})"


def rounds_of_all(world_size, num_shards, ranks_per_machine):
    owned = [roots(block(rank, world_size, num_shards)) for rank in range(world_size)]
    return [plan_rounds(rank, owned, bases(world_size, ranks_per_machine)) for rank in range(world_size)]


def stack_of(shards):
    stack = []
    for shard in shards:
        push(stack, Node(shard, 1, str(shard)), bracket)
    return stack


@settings(deadline=None, max_examples=15)
@given(hosts, st.integers(0, 40))
def test_every_rank_sums_the_tree_of_one_process(shape, more):
    num_machines, ranks_per_machine = shape
    world_size = num_machines * ranks_per_machine
    num_shards = world_size + more
    of_rank = [stack_of(block(rank, world_size, num_shards)) for rank in range(world_size)]
    for rounds in zip(*rounds_of_all(world_size, num_shards, ranks_per_machine), strict=True):
        before = of_rank
        of_rank = []
        for one in rounds:
            assert [[(node.start, node.size) for node in before[member]] for member in one.members] == one.roots
            assert one.most_nodes == max(map(len, before))
            values = (node.value for member in one.members for node in before[member])
            of_rank.append(sum_siblings(one.roots, values, bracket))
    assert {fold(stack, bracket) for stack in of_rank} == {fold(stack_of(range(num_shards)), bracket)}


@pytest.mark.parametrize("world_size", [96, 1024])
def test_a_rank_exchanges_with_few_others(world_size):
    others = sum(base - 1 for base in bases(world_size, 8))
    assert math.prod(bases(world_size, 8)) == world_size
    assert others <= 3.5 * math.log2(world_size)


@pytest.mark.parametrize("num_machines", [3, 128])
def test_a_host_sends_as_much_as_in_a_ring_or_a_hierarchical_all_reduce(num_machines):
    """Those let as much out of a host: what leads around the ring, or what one rank of the host
    exchanges for all."""
    length = 1 << 20
    world_size = num_machines * 8
    sent_by_first = elements_sent(0, world_size, world_size, 8, length)
    sent = 8 * sum(number for peer, number in sent_by_first.items() if peer >= 8)
    ring = 2 * (world_size - 1) / world_size * length
    hierarchical = 2 * (num_machines - 1) / num_machines * length
    most = 1.1 if num_machines & (num_machines - 1) == 0 else 2.2
    assert sent <= most * min(ring, hierarchical)


def test_hosts_with_different_numbers_of_ranks_count_as_none():
    assert equal_machines(["a", "a", "b", "b"]) == 2
    assert equal_machines(["a", "a", "b"]) == 1
    assert equal_machines(["a", "a", "b", "b", "b", "b"]) == 1
    assert equal_machines(["a", "b", "a", "b"]) == 1
    assert equal_machines(["a"]) == 1
