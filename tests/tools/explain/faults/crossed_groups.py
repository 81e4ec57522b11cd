"""Two groups of the same ranks, which one rank enters in the other order."""

import datetime
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=50))
is_culprit = dist.get_rank() == int(sys.argv[1])
one, other = dist.new_group(), dist.new_group()
for _ in range(40):
    time.sleep(0.01)
    dist.all_reduce(torch.zeros(16))
values = torch.zeros(4)
if is_culprit:
    dist.all_reduce(values, group=other)  # CULPRIT
    dist.all_reduce(values, group=one)
else:
    dist.all_reduce(values, group=one)  # OTHERS
    dist.all_reduce(values, group=other)
