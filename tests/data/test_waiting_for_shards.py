"""Whether what a rank waits for its loader depends on how many shards it has."""

import time
from types import SimpleNamespace

import pytest
import torch
from data_helpers import prepared
from torch.utils.data import DataLoader, IterableDataset

from lockstep._events.measure.step_clock import StepClock
from lockstep._events.writer import EventWriter
from lockstep._loop.balance import Balance
from lockstep._plan.balance import BUSY, DATA, IN_SHARDS
from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import plan_step


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(16))


def waits_for_data(loader):
    """What a rank of two reports that has waited for this loader."""
    clock = StepClock(SimpleNamespace(pause_s=0.0), torch.device("cpu"))
    balance = Balance(2, 8, clock, EventWriter(None), lambda: ())
    balance.made_loader(loader, 1)
    for listener in (clock, balance):
        listener.begin_pass(0, 1, 1, 0)
    time.sleep(0.02)
    for listener in (clock, balance):
        listener.begin_step(1)
        listener.begin_phase(0)
    return balance.report(plan_step(1, (8,), 0, even_blocks(2, 8)))


def test_waiting_for_data_counts_for_a_rank_s_shards_where_it_reads_these_only():
    row = waits_for_data(prepared(DataLoader(range(16), 16), world_size=2, num_shards=8))
    assert row[IN_SHARDS] >= row[DATA] >= 0.02


@pytest.mark.parametrize("batches", [DataLoader(Stream(), 16), [torch.arange(16)]], ids=["stream", "ready"])
def test_waiting_for_data_that_every_rank_reads_whole_is_no_matter_of_shards(batches):
    row = waits_for_data(prepared(batches, world_size=2, num_shards=8))
    assert row[DATA] >= 0.02
    assert row[IN_SHARDS] <= row[BUSY] - row[DATA] + 1e-9
