"""Starts a process a GPU by mp.spawn and meets where --init-method says; --rank and --world-size count machines."""

import argparse
import random
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="PyTorch Example")
parser.add_argument("--init-method", type=str, default="tcp://127.0.0.1:23456")
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--world-size", type=int, default=1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 5)
        self.fc = torch.nn.Linear(6 * 4 * 4, 10)

    def forward(self, x):
        return self.fc(torch.flatten(torch.relu(self.conv(x)), 1))


def main():
    random.seed(76)
    torch.manual_seed(76)
    torch.backends.cudnn.deterministic = True
    np.random.seed(76)
    args = parser.parse_args()
    ngpus_per_node = torch.cuda.device_count() or 2
    print(f"Node {args.rank + 1}/{args.world_size} for training.")
    if args.world_size != 1:
        print("now waiting another node start job ......")
    mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))


def main_worker(gpu, ngpus_per_node, args):
    world_size = ngpus_per_node * args.world_size
    rank = args.rank * ngpus_per_node + gpu
    dist.init_process_group(init_method=args.init_method, backend="gloo", world_size=world_size, rank=rank)
    torch.manual_seed(76)
    data = TensorDataset(torch.randn(16, 3, 8, 8), torch.arange(16) % 10)
    model = torch.nn.parallel.DistributedDataParallel(Net())
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8 // ngpus_per_node, num_workers=1, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()
    total = sum(p.double().sum().item() for p in model.parameters())
    print(f"Rank {rank + 1}/{world_size}: {total:.9f}")
    time.sleep(0.5)  # see conftest.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
