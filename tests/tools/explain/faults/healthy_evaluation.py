"""The same in a torchrun script."""

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))


class Slow(Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, index):
        time.sleep(0.1)
        return torch.zeros(4)


for step in range(80):
    time.sleep(0.01)
    model(torch.randn(8, 4)).square().mean().backward()
    if step == 40 and dist.get_rank() == int(sys.argv[1]):
        for x in DataLoader(Slow(), 12, num_workers=1):
            model.module(x)
dist.destroy_process_group()
