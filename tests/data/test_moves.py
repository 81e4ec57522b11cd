"""Promises of the blocks of each step while shards move: what was planned stays, on every rank and in every worker."""

import copy

import pytest

from lockstep.data.moves import Moves
from lockstep.plan.blocks import blocks_of, even_blocks

pytestmark = pytest.mark.timeout(20)

FIRST, SECOND = blocks_of((5, 3)), blocks_of((6, 2))


@pytest.fixture(params=["in this process", "in a worker"])
def moves_and_reader(request):
    """Moves, and how a loader sees them: itself, or in a worker, which has a copy of all but what is shared."""
    moves = Moves(even_blocks(2, 8))
    if request.param == "in this process":
        return moves, moves
    moves.share(4)
    reader = copy.copy(moves)
    return moves, reader


def sizes_at(moves, *steps):
    return [moves.at(step).sizes for step in steps]


def test_a_move_counts_from_its_first_step_on(moves_and_reader):
    moves, reader = moves_and_reader
    assert sizes_at(reader, 1, 2, 3) == [(4, 4)] * 3
    moves.move(5, FIRST)
    assert sizes_at(reader, 4, 5, 6) == [(4, 4), (5, 3), (5, 3)]
    moves.settle(4)
    moves.move(9, SECOND)
    assert sizes_at(reader, 8, 9, 100) == [(5, 3), (6, 2), (6, 2)]
    moves.settle(8)
    moves.move(11, FIRST)
    assert sizes_at(reader, 10, 11) == [(6, 2), (5, 3)]


def test_the_blocks_in_force_change_when_the_move_does():
    moves = Moves(even_blocks(2, 8))
    moves.move(5, FIRST)
    assert moves.in_force.sizes == (4, 4)
    moves.settle(4)
    assert moves.in_force is FIRST


def test_between_passes_a_move_need_not_wait_for_steps_that_nobody_takes(moves_and_reader):
    moves, reader = moves_and_reader
    moves.move(50, FIRST)
    moves.settle(6)
    assert moves.in_force is FIRST
    assert sizes_at(reader, 7) == [(5, 3)]


def test_a_worker_that_starts_later_knows_of_the_moves_before():
    moves = Moves(even_blocks(2, 8))
    moves.move(5, FIRST)
    moves.share(3)
    worker = copy.copy(moves)
    assert sizes_at(worker, 4, 5) == [(4, 4), (5, 3)]


def test_what_may_be_planned_is_known_with_and_without_a_worker():
    moves = Moves(even_blocks(2, 8))
    for step in (1, 2, 3, 4):
        moves.at(step)
    assert moves.planned_until(2) == 4
    moves.share(6)
    assert moves.planned_until(2) == 8
