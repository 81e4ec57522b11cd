"""Where parameters are sharded: a rank's slices of gradients are added in the tree of all shards,
and all ranks know which parameters had a gradient in a phase, and in no other one."""

import itertools
import random

import pytest
import sync_scripts
import torch
from torch import nn

from lockstep._plan.blocks import block
from lockstep._plan.tree import Node, fold, push
from lockstep._sync.buckets import ABSENT
from lockstep._sync.slice_sum import SliceSum
from lockstep._sync.slices import Slices

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
WIDTH = 16  # of a row, which is filled to 64 bytes


def part_of(shard, part):
    """What a part of a shard has for the slices of a rank: numbers whose sum depends on its
    order."""
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(10 * shard + part)) * 10.0 ** (shard % 5)


def added(world_size, per_rank, num_parts, has_gradient):
    """The sum, and a second look at it. ``has_gradient``: by the number of a shard in its block."""
    blocks = [block(rank, world_size, world_size * per_rank) for rank in range(world_size)]
    slices = Slices([nn.Parameter(torch.ones(world_size * WIDTH))], torch.float32, world_size)
    assert slices.width == WIDTH
    sums = SliceSum(slices, blocks)
    for index, part in itertools.product(range(per_rank), range(num_parts)):
        if has_gradient(index):
            sums.add(index, torch.stack([part_of(shards[index], part) for shards in blocks]))
    return sums.total(), sums.total()


def expected(world_size, per_rank, num_parts, has_gradient):
    stack = []
    for shard in range(world_size * per_rank):
        leaf = torch.full((WIDTH,), ABSENT)
        if has_gradient(shard % per_rank):
            leaf = part_of(shard, 0)
            for part in range(1, num_parts):
                leaf = leaf + part_of(shard, part)
        push(stack, Node(shard, 1, leaf), torch.add)
    return fold(stack, torch.add)


LEFT_OUT = {"none": lambda _: True, "the first": lambda n: n > 0, "odd ones": lambda n: n % 2 == 0, "all": lambda _: False}


@pytest.mark.parametrize("left_out", LEFT_OUT)
@pytest.mark.parametrize("num_parts", [1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_slices_of_all_shards_are_added_as_on_one_process(world_size, num_parts, left_out):
    for per_rank in range(1, 10):
        case = world_size, per_rank, num_parts, LEFT_OUT[left_out]
        for found in added(*case):
            assert torch.equal(found.view(torch.int32), expected(*case).view(torch.int32)), f"{per_rank} shards a rank"
            # what other ranks have sent is not kept with it
            assert found.untyped_storage().nbytes() == found.nbytes


def drawn_steps(seed, num_steps, nproc):
    """For each step and phase, and each rank and backward call in it, the parameters that are used:
    mostly those of the step before."""
    dice, steps = random.Random(seed), []
    for _ in range(num_steps):
        step = []
        for phase in range(2):
            num_calls = phase + 1
            last = steps[-1][phase] if steps and dice.random() < 0.6 else None
            step.append(last or [[draw(dice) for _ in range(num_calls)] for _ in range(nproc)])
        steps.append(step)
    return steps


def draw(dice):
    return sorted(dice.sample(range(sync_scripts.NUM_USED), dice.choice((0, 1, 2, sync_scripts.NUM_USED))))


@pytest.mark.parametrize("nproc", [1, 2])
def test_parameters_are_used_in_a_phase_if_any_rank_uses_them_then(standing_crew, nproc):
    steps = drawn_steps(nproc, 40, nproc)
    for seen in standing_crew(nproc, sync_scripts.use_parameters, steps):
        before = [None, None]
        for step, seen_step in zip(steps, seen, strict=True):
            for phase, (by_rank, (found, was_exchanged)) in enumerate(zip(step, seen_step, strict=True)):
                of_all = [sorted(set().union(*of_call)) for of_call in zip(*by_rank, strict=True)]
                assert found == [*of_all, []], "in a call that nobody makes, nothing is used"
                assert was_exchanged == (by_rank != before[phase]), "what stays the same is not sent again"
                before[phase] = by_rank
