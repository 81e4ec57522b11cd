"""A data set that draws in set_epoch() has drawn the same in every loader worker, and on every
process."""

import random

import pytest
import torch
from data_helpers import deal_all, same
from torch.utils.data import DataLoader, Dataset

pytestmark = [pytest.mark.timeout(120), pytest.mark.quick]


class Pairs(Dataset):
    """Each sample with another that is drawn for the epoch."""

    def __init__(self):
        self.others, self.order = [], list(range(12))

    def __len__(self):
        return 12

    def set_epoch(self, epoch):
        self.others = torch.randperm(12).tolist()
        random.shuffle(self.order)  # goes on from the epoch before

    def __getitem__(self, index):
        return torch.tensor([index, self.others[index], self.order[index]])


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 0}])
@pytest.mark.parametrize("world_size", [1, 3])
def test_what_an_epoch_draws_is_the_same_with_workers(world_size, options):
    expected = deal_all(lambda: DataLoader(Pairs(), 5), 1, 3, epochs=3)
    found = deal_all(lambda: DataLoader(Pairs(), 5, **options), world_size, 3, epochs=3)
    assert same(found, expected)
