"""One rank calls what the others do not, in a torchrun script: ``CULPRIT CALL``."""

import datetime
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=50))
is_culprit, call = dist.get_rank() == int(sys.argv[1]), sys.argv[2]
world_size = dist.get_world_size()
values = torch.zeros(16)
for _ in range(40):
    time.sleep(0.01)
    dist.all_reduce(values)
if is_culprit:
    match call:
        case "monitored_barrier":
            dist.monitored_barrier()  # monitored_barrier
        case "init_device_mesh":
            init_device_mesh("cpu", (world_size,), backend_override={0: "gloo"})  # init_device_mesh
        case "all_gather_object":
            dist.all_gather_object([None] * world_size, {"loss": 0.5})  # all_gather_object
        case "DistributedDataParallel":
            nn.parallel.DistributedDataParallel(nn.Linear(3, 3))  # DistributedDataParallel
        case "new_group":
            dist.new_group(list(range(world_size)))  # new_group
dist.all_reduce(values)  # OTHERS
