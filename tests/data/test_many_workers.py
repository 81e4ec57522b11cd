"""PyTorch's warning of more loader workers than cores is one of workers that are started."""

import os
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import lockstep

pytestmark = pytest.mark.timeout(60)
MANY = (os.cpu_count() or 1) + 1


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(8.0))


def warnings_of(is_stream):
    """How many there are where a loader is made and prepared, and while it is read."""
    with lockstep.join(run_dir="run") as team, warnings.catch_warnings(record=True) as said:
        data = Stream() if is_stream else TensorDataset(torch.arange(8.0))
        loader = team.prepare(DataLoader(data, batch_size=4, num_workers=MANY))
        for _ in range(2):
            for batch in loader:
                for _ in batch.shards:
                    pass
    return len([each for each in said if "worker processes" in str(each.message)])


@pytest.mark.parametrize(("is_stream", "workers", "number"), [(True, None, 0), (False, None, 1), (False, 1, 0)])
def test_it_is_said_once_and_only_if_so_many_are_used(crew, is_stream, workers, number):
    assert crew(1, warnings_of, is_stream, workers=workers) == [number]
