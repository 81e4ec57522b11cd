"""A line of one rank takes most of each step; another one took longer, but once, before the
loop."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
is_culprit = dist.get_rank() == int(sys.argv[1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def read_index():
    time.sleep(4 if is_culprit else 0)


def plot_histogram():
    if is_culprit:
        time.sleep(0.06)  # CULPRIT


read_index()
while True:
    time.sleep(0.01)
    plot_histogram()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
