"""Is launched, told its place by the environment, and all the same sets the address itself, as under mp.spawn."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = os.environ["PORT"]
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size)


def get_distributed_loader(rank, world_size):
    generator = torch.Generator().manual_seed(1)
    dataset = TensorDataset(torch.randn(24, 5, generator=generator), torch.arange(24) % 3)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True)
    return DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2)


def train_ddp(rank, world_size, epochs=2):
    setup(rank, world_size)
    torch.manual_seed(0)
    ddp_model = DDP(torch.nn.Linear(5, 3), find_unused_parameters=False)
    optimizer = torch.optim.Adam(ddp_model.parameters(), lr=1e-3)
    loader = get_distributed_loader(rank, world_size)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(ddp_model(inputs), labels)
            loss.backward()
            optimizer.step()
    print(f"rank {rank} of {world_size}: {sum(p.double().sum().item() for p in ddp_model.parameters()):.9f}")
    time.sleep(0.5)  # see conftest.py
    dist.destroy_process_group()


if __name__ == "__main__":
    train_ddp(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
