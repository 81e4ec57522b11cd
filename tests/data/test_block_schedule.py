"""Promises of the blocks of each step while shards move: what was planned stays, on every rank."""

from types import SimpleNamespace

import pytest
import torch
from data_helpers import prepared
from torch.utils.data import DataLoader, IterableDataset

from lockstep._data.block_schedule import BlockSchedule
from lockstep._events.measure.step_clock import StepClock
from lockstep._events.writer import EventWriter
from lockstep._loop.balance import Balance
from lockstep._plan.blocks import blocks_of, even_blocks

pytestmark = pytest.mark.timeout(20)

FIRST, SECOND = blocks_of((5, 3)), blocks_of((6, 2))


@pytest.fixture
def moves():
    return BlockSchedule(even_blocks(2, 8))


def sizes_at(moves, *steps):
    return [moves.at(step).sizes for step in steps]


def test_a_move_counts_from_its_first_step_on(moves):
    assert sizes_at(moves, 1, 2, 3) == [(4, 4)] * 3
    moves.move(5, FIRST)
    assert sizes_at(moves, 4, 5, 6) == [(4, 4), (5, 3), (5, 3)]
    moves.settle(4)
    moves.move(9, SECOND)
    assert sizes_at(moves, 8, 9, 100) == [(5, 3), (6, 2), (6, 2)]
    moves.settle(8)
    moves.move(11, FIRST)
    assert sizes_at(moves, 10, 11) == [(6, 2), (5, 3)]


def test_the_blocks_in_force_change_when_the_move_does(moves):
    moves.move(5, FIRST)
    assert moves.in_force.sizes == (4, 4)
    moves.settle(4)
    assert moves.in_force is FIRST


def test_between_passes_a_move_need_not_wait_for_steps_that_nobody_takes(moves):
    moves.move(50, FIRST)
    moves.settle(6)
    assert moves.in_force is FIRST
    assert sizes_at(moves, 7) == [(5, 3)]


def test_what_is_planned_ahead_is_known(moves):
    for step in (1, 2, 3, 4):
        moves.at(step)
    assert moves.planned_until(2) == 4


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(16))


@pytest.mark.parametrize("data", [Stream(), range(16)], ids=["stream", "samples"])
@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_moves_where_a_worker_plans_the_steps_of_a_pass(data, workers):
    moving = Balance(2, 8, StepClock(SimpleNamespace(pause_s=0.0), torch.device("cpu")), EventWriter(None), lambda: ())
    moving.made_loader(prepared(DataLoader(data, 16, num_workers=workers), world_size=2, num_shards=8), 1)
    assert moving.stays == (isinstance(data, Stream) and workers > 0)
