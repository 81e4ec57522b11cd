"""Starts its processes by mp.spawn; each sets MASTER_ADDR and MASTER_PORT itself, as the DDP tutorial does."""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def find_free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def demo_checkpoint(rank, world_size, port):
    setup(rank, world_size, port)
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(10, 5))
    if rank == 0:
        torch.save(model.state_dict(), "model.checkpoint")
    dist.barrier()
    model.load_state_dict(torch.load("model.checkpoint"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.mse_loss(model(torch.full((4, 10), rank + 1.0)), torch.zeros(4, 5)).backward()
    optimizer.step()
    print(f"rank {rank} of {dist.get_world_size()}: {sum(p.sum().item() for p in model.parameters()):.6f}")
    dist.barrier()
    if rank == 0:
        os.remove("model.checkpoint")
    time.sleep(0.5)  # see conftest.py
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    mp.spawn(demo_checkpoint, args=(world_size, find_free_port()), nprocs=world_size, join=True)
