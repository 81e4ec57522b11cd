"""A worker of torch.distributed.launch's time: told its rank by --local_rank, and by --local_world_size what the user says."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(torch.relu(self.net1(x)))


def demo_basic(local_world_size, local_rank):
    torch.manual_seed(local_rank)  # DDP takes rank 0's weights, whatever the others begin with
    model = DistributedDataParallel(ToyModel())
    optimizer = optim.SGD(model.parameters(), lr=0.001)
    loss = nn.MSELoss()(model(torch.full((20, 10), local_rank + 1.0)), torch.zeros(20, 5))
    loss.backward()
    optimizer.step()
    norm = sum(p.grad.double().square().sum() for p in model.parameters()).item()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}, local {local_rank} of {local_world_size}: {norm:.9f}")


def spmd_main(local_world_size, local_rank):
    for key in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        assert os.environ[key]
    dist.init_process_group(backend="gloo", init_method="env://")
    demo_basic(local_world_size, local_rank)
    time.sleep(0.5)  # see conftest.py
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--local_world_size", type=int, default=1)
    args = parser.parse_args()
    spmd_main(args.local_world_size, args.local_rank)
