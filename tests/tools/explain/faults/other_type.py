"""Equally many bytes, of two types: the sum is wrong, and PyTorch sees no error."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
is_culprit = dist.get_rank() == int(sys.argv[1])
for _ in range(40):
    time.sleep(0.01)
    dist.all_reduce(torch.zeros(16))
if is_culprit:
    dist.all_reduce(torch.tensor([12], dtype=torch.int32))  # CULPRIT
else:
    dist.all_reduce(torch.tensor([12.0]))  # OTHERS
dist.destroy_process_group()
