"""C code of one rank keeps the interpreter to itself; what its black box says last is that it waits
for the others."""

import ctypes
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
is_culprit = dist.get_rank() == int(sys.argv[1])
values = torch.zeros(16)
for _ in range(40):
    time.sleep(0.01)
    dist.all_reduce(values)
if not is_culprit:
    time.sleep(1.5)
dist.all_reduce(values)
if is_culprit:
    ctypes.PyDLL(None).sleep(300)  # CULPRIT
dist.all_reduce(values)  # OTHERS
