"""Buffers that are no statistics are told of, once, and what is a statistic never is."""

import re

import pytest
import sync_scripts
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from lockstep._sync.buffers import ShardBuffers, add_changes

STEPS = 6


class Buffer(nn.Module):
    """A module with one buffer, which ``change(buffer, samples, indices)`` changes in a forward
    pass."""

    def __init__(self, start, change):
        super().__init__()
        self.register_buffer("buffer", start)
        self.change = change

    @torch.no_grad()
    def forward(self, samples, indices):
        changed = self.change(self.buffer, samples, indices)
        if changed is not None:
            self.buffer = changed


def train(start, change, sizes):
    """Steps of shards of these sizes. Samples have positive and negative features."""
    module = Buffer(start.clone(), change)
    buffers = ShardBuffers()
    buffers.attach(module)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        buffers.begin_phase(len(sizes))
        order = torch.randperm(30, generator=generator)
        changes = {}
        for number, (size, indices) in enumerate(zip(sizes, order[: sum(sizes)].split(list(sizes)), strict=True)):
            module(torch.randn(size, 5, generator=generator), indices)
            found = buffers.take_changes(size / sum(sizes), is_lowest_shard=number == 0, num_samples=size)
            add_changes(changes, found)
            buffers.rewind()
        buffers.apply(changes)
        buffers.warn_of_lost_changes(buffers.looks())


def write_rows(buffer, samples, indices):
    buffer[indices] = samples


def set_flags(buffer, samples, indices):
    buffer[indices] = True


def fill_queue(buffer, samples, indices):
    buffer[: len(samples)] = samples  # as MoCo does, from its pointer


def follow_classes(buffer, samples, indices):
    for row in indices % 10:
        buffer[row].lerp_(samples.mean(0), 0.1)


def vote(buffer, samples, indices):
    buffer += 0.001 * torch.sign(samples.mean(0) - samples.mean())


LOSSY = {
    "integer counter": (torch.tensor(0), lambda b, x, i: b.add_(len(x))),
    "float counter": (torch.tensor(1e-4, dtype=torch.float64), lambda b, x, i: b.add_(len(x))),
    "class counts": (torch.zeros(10, dtype=torch.long), lambda b, x, i: b.add_((i % 10).bincount(minlength=10))),
    "numbers of the newest": (torch.arange(98, 100), lambda b, x, i: b.copy_(i[:2])),
    "flags by sample": (torch.zeros(30, dtype=torch.bool), set_flags),
    "memory bank": (torch.randn(30, 5), write_rows),
    "queue with a pointer": (torch.randn(30, 5), fill_queue),
    "queue that shifts": (torch.randn(30, 5), lambda b, x, i: torch.cat([x, b])[:30]),
    "prototypes by class": (torch.randn(10, 5), follow_classes),
    "minimum from infinity": (torch.full((5,), float("inf")), lambda b, x, i: torch.minimum(b, x.amin(0))),
    "maximum from zero": (torch.zeros(()), lambda b, x, i: b.copy_(torch.maximum(b, x.abs().max()))),
    "biases by votes": (torch.zeros(5), vote),
}
HARMLESS = {
    "running mean": (torch.zeros(5), lambda b, x, i: b.lerp_(x.mean(0), 0.1)),
    "running variance": (torch.ones(5), lambda b, x, i: b.lerp_(x.square().mean(0), 0.1)),
    "frequencies from zero": (torch.zeros(10), lambda b, x, i: b.lerp_((i % 10).bincount(minlength=10) / len(i), 0.1)),
    "share of a rare class": (torch.zeros(()), lambda b, x, i: b.lerp_((i % 7 == 0).float().mean(), 0.1)),
    "moving range": (torch.zeros(2), lambda b, x, i: b.lerp_(torch.stack([x.min(), x.max()]), 0.1)),
    "integer that counts steps": (torch.tensor(0), lambda b, x, i: b.add_(1)),
    "flag": (torch.tensor(False), lambda b, x, i: b.fill_(True)),
    "vector of a spectral norm": (torch.ones(5), lambda b, x, i: b.copy_(torch.linspace(1, 2, 5) * b).div_(b.norm())),
    "constant": (torch.ones(5), lambda b, x, i: None),
}


few = settings(
    deadline=None,
    max_examples=5,
    derandomize=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # it is empty after each kind
)


def told(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if "WARNING" in line]


def told_of(capfd, table, sizes):
    """What is told of each kind of buffer, of those of which something is."""
    said = {}
    for kind, (start, change) in table.items():
        train(start, change, sizes)
        said[kind] = told(capfd)
    return {kind: lines for kind, lines in said.items() if lines}


@few
@given(st.lists(st.integers(2, 3), min_size=4, max_size=6))
def test_a_buffer_of_which_something_is_lost_is_told_of_once(capfd, sizes):
    said = told_of(capfd, LOSSY, sizes)
    assert {kind: len(lines) for kind, lines in said.items()} == dict.fromkeys(LOSSY, 1)
    for (line,) in said.values():
        assert "'buffer' of Buffer" in line
        assert "docs/contract.md#buffers" in line


@few
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_nothing_is_told_of_statistics_and_of_what_all_shards_change_alike(capfd, sizes):
    assert told_of(capfd, HARMLESS, sizes) == {}


def test_nothing_is_told_where_a_step_has_a_single_shard_since_nothing_is_lost(capfd):
    assert told_of(capfd, LOSSY, [12]) == {}


def test_normalization_layers_are_not_looked_at():
    model = nn.Sequential(nn.BatchNorm1d(5))
    buffers = ShardBuffers()
    buffers.attach(model)
    buffers.begin_phase(2)
    for number in range(2):
        model(torch.randn(4, 5))
        buffers.take_changes(0.5, is_lowest_shard=number == 0, num_samples=4)
        buffers.rewind()
    assert buffers.looks() == []


def test_after_the_first_phases_nobody_looks_any_more():
    module = Buffer(torch.zeros(5), lambda b, x, i: b.lerp_(x.mean(0), 0.1))
    buffers = ShardBuffers()
    buffers.attach(module)
    seen = []
    for _ in range(12):
        buffers.begin_phase(2)
        module(torch.randn(3, 5), torch.arange(3))
        changes = buffers.take_changes(1.0, is_lowest_shard=True, num_samples=3)
        seen.append(len(buffers.looks()))
        buffers.rewind()
        buffers.apply(changes)
        buffers.warn_of_lost_changes(buffers.looks())
    assert seen[0] == 1
    assert seen[-1] == 0
    assert seen == sorted(seen, reverse=True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("nproc", "strategy"), [(1, "exact"), (2, "exact"), (3, "exact"), (2, "ddp")])
def test_every_number_of_processes_tells_of_the_same_buffers_once(crew, capfd, nproc, strategy):
    crew(nproc, sync_scripts.buffers_that_lose, strategy, shards=4)
    names = sorted(re.search(r"'(\w+)' of", line)[1] for line in told(capfd))
    assert names == ["bank", "seen"]
