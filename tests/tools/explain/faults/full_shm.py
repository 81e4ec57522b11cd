"""The shared memory of one rank's loader workers is full: what they have made cannot be passed
on."""

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
is_culprit = dist.get_rank() == int(sys.argv[1])


class Volumes(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        # of 4 MB, 8 in a batch
        return torch.zeros((1 << 20) if is_culprit and index >= 160 else 1 << 8)


if __name__ == "__main__":
    batches = iter(DataLoader(Volumes(), 8, num_workers=1, collate_fn=list))
    while True:
        time.sleep(0.01)
        next(batches)  # CULPRIT
        dist.all_reduce(torch.zeros(16))
