"""The same as ``many_lockstep.py`` by DistributedDataParallel, written for torchrun:
``many_torchrun.py FILE STEPS``."""

import datetime
import itertools
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH = int(sys.argv[2]), 128
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
dist.barrier()
ready = time.monotonic()
torch.manual_seed(0)
data = TensorDataset(torch.randn(STEPS * BATCH, 16), torch.randint(0, 4, (STEPS * BATCH,)))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=BATCH // dist.get_world_size(), sampler=DistributedSampler(data))
times = [time.monotonic()]
for x, y in loader:
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.monotonic())
if dist.get_rank() == 0:
    steps = [after - before for before, after in itertools.pairwise(times[1:])]
    Path(sys.argv[1]).write_text(f"{ready} {statistics.median(steps)}", encoding="utf-8")
dist.destroy_process_group()
