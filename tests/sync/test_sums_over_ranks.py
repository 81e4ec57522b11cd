"""Sums of tensors over the ranks are those of the tree, to the bit, in whatever rounds they are
taken."""

import random

import pytest
import sync_scripts
import torch
from traffic import elements_sent, out_of_machine

from lockstep._plan.blocks import block
from lockstep._plan.tree import Node, fold, push, roots, sum_subtrees
from lockstep._sync.row_sum import RowSum

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]

LONG = 1 << 17
LENGTHS = [1, 40_000, 100_001, 3, 20_000]  # whole and in slices, several at a time


def on_one_process(length, num_shards):
    stack = []
    for shard in range(num_shards):
        push(stack, Node(shard, 1, sync_scripts.leaf(length, shard)), torch.add)
    return fold(stack, torch.add)


@pytest.mark.parametrize(
    ("nproc", "ranks_per_machine", "rounds"),
    [(2, 1, [(0, 1)]), (3, 1, [(0, 1, 2)]), (4, 4, [(0, 1, 2, 3)]), (4, 2, [(0, 1), (0, 2)]), (6, 3, [(0, 1, 2), (0, 3)])],
)
def test_sums_are_those_of_one_process(standing_crew, nproc, ranks_per_machine, rounds):
    of_ranks = standing_crew(nproc, sync_scripts.sum_in_rounds, ranks_per_machine, LENGTHS, 7)
    assert of_ranks[0][1] == rounds
    for sums, _, _ in of_ranks:
        for length, found in zip(LENGTHS, sums, strict=True):
            assert torch.equal(found, on_one_process(length, 7))


@pytest.mark.parametrize(("nproc", "ranks_per_machine", "num_shards"), [(4, 2, 4), (4, 2, 7), (6, 3, 6)])
def test_ranks_send_what_was_planned_and_a_host_lets_out_what_a_ring_would(
    standing_crew, nproc, ranks_per_machine, num_shards
):
    of_ranks = standing_crew(nproc, sync_scripts.sum_in_rounds, ranks_per_machine, [LONG], num_shards)
    out = 0
    for rank, (_, _, sent) in enumerate(of_ranks):
        assert sent == elements_sent(rank, nproc, num_shards, ranks_per_machine, LONG)
        out += sum(number for peer, number in sent.items() if rank < ranks_per_machine <= peer)
    assert out == out_of_machine(nproc, num_shards, ranks_per_machine, LONG)
    if num_shards == nproc == 4:  # hosts hold one subtree each
        assert out <= 1.1 * 2 * (nproc - 1) / nproc * LONG


@pytest.mark.parametrize(("nproc", "num_shards", "most_launches"), [(1, 7, 2), (2, 2, 3), (3, 7, 9), (4, 4, 4), (4, 7, 9)])
def test_sums_by_collectives_in_order_are_those_of_one_process_in_few_launches(
    standing_crew, nproc, num_shards, most_launches
):
    lengths = [16 * nproc, 5, 32 * nproc, 0]  # the second is no bucket's: it is padded
    for sums, launches, _ in standing_crew(nproc, sync_scripts.sum_in_order, 1, lengths, num_shards):
        for length, found in zip(lengths, sums, strict=True):
            assert torch.equal(found, on_one_process(length, num_shards))
        assert launches[0] == launches[2] <= most_launches


@pytest.mark.parametrize(
    ("nproc", "ranks_per_machine", "num_shards", "most_kernels"), [(4, 2, 4, 5), (4, 2, 7, 8), (6, 2, 8, 8)]
)
def test_sums_in_order_between_machines_are_those_of_one_process_and_let_out_what_was_planned(
    standing_crew, nproc, ranks_per_machine, num_shards, most_kernels
):
    lengths = [32 * nproc, 5, 0]
    of_ranks = standing_crew(nproc, sync_scripts.sum_in_order, ranks_per_machine, lengths, num_shards)
    for rank, (sums, launches, sent) in enumerate(of_ranks):
        for length, found in zip(lengths, sums, strict=True):
            assert torch.equal(found, on_one_process(length, num_shards))
        assert sent[0] == elements_sent(rank, nproc, num_shards, ranks_per_machine, lengths[0])
        assert launches[0] <= most_kernels


@pytest.mark.parametrize(
    ("num_ranks", "num_shards", "kernels"), [(8, 8, 3), (8, 64, 3), (64, 64, 6), (6, 6, 3), (5, 8, 3), (3, 7, 3)]
)
def test_the_rows_of_all_ranks_add_up_in_the_tree_by_halves(num_ranks, num_shards, kernels):
    owned = [roots(block(rank, num_ranks, num_shards)) for rank in range(num_ranks)]
    rows = torch.stack([sync_scripts.leaf(33, number % 20) for number in range(sum(map(len, owned)))])
    expected = sum_subtrees(owned, rows.clone().unbind(), torch.add)
    with sync_scripts.Launches() as counted:
        found = fold(RowSum(owned)(rows), torch.Tensor.add_)
    assert torch.equal(found, expected)
    assert counted.number == kernels


@pytest.mark.parametrize(("nproc", "messages"), [(1, 0), (3, 0), (8, 3), (9, 4)])
def test_short_rows_of_all_ranks_come_in_few_messages(standing_crew, nproc, messages):
    """Those of a few ranks by PyTorch's own collective."""
    expected = torch.tensor([[rank, 0.5] for rank in range(nproc)])
    for found, num_sent in standing_crew(nproc, sync_scripts.gather_short):
        assert torch.equal(found, expected)
        assert num_sent == messages


def drawn_uses(nproc, num_cases):
    """For each case and rank, the parameters that it has gradients of, in the order in which they
    came."""
    dice, names = random.Random(nproc), list(sync_scripts.parameters_of_kinds())
    kinds = [lambda: names, list, lambda: dice.sample(names, dice.randint(1, len(names)))]
    cases = [[dice.choice(kinds)() for _ in range(nproc)] for _ in range(num_cases)]
    # each is used by one rank alone
    return [*cases, [names[rank::nproc] for rank in range(nproc)], [names[rank::nproc] for rank in reversed(range(nproc))]]


@pytest.mark.parametrize("nproc", [1, 2, 3])
def test_gradients_that_some_ranks_have_are_summed_for_their_own_parameters(standing_crew, nproc):
    cases, parameters = drawn_uses(nproc, 40), sync_scripts.parameters_of_kinds()
    for found in standing_crew(nproc, sync_scripts.reduce_what_some_use, cases):
        for by_rank, (totals, all_used) in zip(cases, found, strict=True):
            users = {name: [rank for rank, used in enumerate(by_rank) if name in used] for name in parameters}
            assert totals.keys() == {name for name, ranks in users.items() if ranks}
            for name, total in totals.items():
                expected = sum(sync_scripts.gradient_of_kind(name, parameters[name], rank) for rank in users[name])
                torch.testing.assert_close(total, expected, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")
            partly = any(0 < len(used) < len(parameters) for used in by_rank)
            assert all_used == (any(by_rank) and not partly)
