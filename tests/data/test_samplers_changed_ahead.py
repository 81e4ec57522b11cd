"""A change of a sampler that indices drawn ahead do not have is warned of, once; others are not."""

import pytest
import torch
from data_helpers import Numbers, assignment
from torch.utils.data import BatchSampler, DataLoader, Sampler

from lockstep._data.sources import choose_source

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
LENGTH = 32


class Curriculum(Sampler):
    def __init__(self):
        self.limit, self.limits, self.array, self.drawn = 1000, [8], torch.tensor([8]), 0
        self.generator = torch.Generator().manual_seed(1)

    def __len__(self):
        return LENGTH

    def __iter__(self):
        for _ in range(LENGTH):
            self.drawn += 1
            limit = self.limit + self.limits[0] + int(self.array)
            yield int(torch.randint(int(limit) % 64 + 1, (), generator=self.generator))


def rebind(sampler):
    sampler.limit += 1


def set_item(sampler):
    sampler.limits[0] += 1


def write(sampler):
    sampler.array += 1


def add(sampler):
    sampler.extra = 1


def nothing(sampler):
    pass


def said(capfd, change, steps, wraps=False, **options):
    """The warnings of two passes of eight steps, in which the script makes a change in these steps.
    0: before each pass."""
    sampler = Curriculum()
    which = {"batch_sampler": BatchSampler(sampler, 4, drop_last=False)} if wraps else {"sampler": sampler, "batch_size": 4}
    source = choose_source(DataLoader(Numbers(99), **which, **options), assignment())
    for epoch in range(2):
        if 0 in steps:
            change(sampler)
        for plan, _ in source.steps(1 + 8 * epoch, epoch):
            source.taken(plan.number)
            if (plan.number - 1) % 8 + 1 in steps:
                change(sampler)
        source.ended()
    return "".join(capfd.readouterr()).count("WARNING")


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("change", [rebind, set_item, write, add])
def test_a_change_within_a_pass_is_warned_of_once(change, wraps, capfd):
    assert said(capfd, change, range(2, 6), wraps, num_workers=2) == 1


@pytest.mark.parametrize("change", [rebind, set_item, write, add])
def test_a_change_that_all_indices_have_is_not(change, capfd):
    assert said(capfd, change, [0], num_workers=2) == 0
    assert said(capfd, change, [8], num_workers=2) == 0  # behind the last
    assert said(capfd, change, range(9), num_workers=0) == 0  # nothing is drawn ahead
    assert said(capfd, nothing, range(9), num_workers=2) == 0


def test_a_value_that_is_set_again_is_not(capfd):
    assert said(capfd, lambda sampler: setattr(sampler, "limit", float(str(sampler.limit))), range(2, 6), num_workers=2) == 1
    assert said(capfd, lambda sampler: setattr(sampler, "limit", int(str(sampler.limit))), range(9), num_workers=2) == 0
