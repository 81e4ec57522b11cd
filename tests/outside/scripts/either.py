"""Trains as the process that a launcher has started; and where none has, starts two by mp.spawn."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, world_size):
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        how = "launched"
    else:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"])
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        how = "spawned"
    ranks = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(ranks)
    print(f"{how} {dist.get_rank()} of {dist.get_world_size()}: {ranks.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        mp.spawn(train, args=(2,), nprocs=2)
