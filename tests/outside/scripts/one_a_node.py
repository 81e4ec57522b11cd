"""One process for each machine, which is told by hand which one it is, and meets the others where --init-method says."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="PyTorch Example")
parser.add_argument("--init-method", type=str, default="tcp://127.0.0.1:23456")
parser.add_argument("--rank", type=int)
parser.add_argument("--world-size", type=int)


def main():
    args = parser.parse_args()
    print(f"Node {args.rank + 1}/{args.world_size} for training.")
    dist.init_process_group(
        init_method=args.init_method, backend="gloo", world_size=args.world_size, rank=args.rank, group_name="pytorch_test"
    )
    torch.manual_seed(76)
    data = TensorDataset(torch.randn(16, 6), torch.arange(16) % 3)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, target in DataLoader(data, batch_size=4, sampler=sampler):
            loss = torch.nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        dist.barrier()
    total = sum(p.double().sum().item() for p in model.parameters())
    print(f"Rank {args.rank + 1}/{args.world_size}: {total:.9f}")
    time.sleep(0.5)  # see conftest.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
