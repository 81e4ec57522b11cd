"""One rank's disk is slow: each of its files takes seconds to be synced."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
is_culprit = dist.get_rank() == int(sys.argv[1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
fsync = os.fsync


def slow_fsync(fd):
    time.sleep(4)
    fsync(fd)


if is_culprit:
    os.fsync = slow_fsync


def save():
    with Path(f"weights-{dist.get_rank()}.pt").open("wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())  # CULPRIT


step = 0
while True:
    step += 1
    time.sleep(0.01)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        save()
