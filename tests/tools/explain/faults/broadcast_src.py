"""The ranks do not agree which of them broadcasts."""

import datetime
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=50))
is_culprit = dist.get_rank() == int(sys.argv[1])
leader = 0 if int(sys.argv[1]) else dist.get_world_size() - 1  # the culprit takes itself for it
for _ in range(40):
    time.sleep(0.01)
    dist.all_reduce(torch.zeros(16))
if is_culprit:
    dist.broadcast(torch.ones(5), src=dist.get_rank())  # CULPRIT
else:
    dist.broadcast(torch.ones(5), src=leader)  # OTHERS
dist.all_reduce(torch.zeros(16))
dist.barrier()
