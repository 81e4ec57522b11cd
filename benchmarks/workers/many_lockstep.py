"""A tiny training by lockstep: ``many_lockstep.py FILE STEPS``. Rank 0 notes when it had joined,
and the time of a step."""

import itertools
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

STEPS, BATCH = int(sys.argv[2]), 128
team = lockstep.join(seed=0, timeout_s=600, checkpoint_every="off")
ready = time.monotonic()
data = TensorDataset(torch.randn(STEPS * BATCH, 16), torch.randint(0, 4, (STEPS * BATCH,)))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, batch_size=BATCH))
times = [time.monotonic()]
for _ in team.epochs(1):
    for batch in loader:
        for x, y in batch.shards:
            team.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.monotonic())
if team.is_main:
    steps = [after - before for before, after in itertools.pairwise(times[1:])]
    Path(sys.argv[1]).write_text(f"{ready} {statistics.median(steps)}", encoding="utf-8")
