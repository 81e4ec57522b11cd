"""Starts a process a GPU by mp.spawn; RANK and WORLD_SIZE, which a cluster sets, count machines."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(local_rank, gpus):
    ip, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    hosts, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    dist.init_process_group("gloo", f"tcp://{ip}:{port}", world_size=hosts * gpus, rank=rank * gpus + local_rank)
    loss = torch.tensor([1.0 + dist.get_rank()])
    dist.reduce(loss, 0)
    if dist.get_rank() == 0:
        print(f"loss {loss.item() / dist.get_world_size()} of {hosts} x {gpus} processes")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)
