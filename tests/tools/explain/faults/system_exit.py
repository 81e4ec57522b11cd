"""One rank leaves lockstep's loop by sys.exit, the others train on."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import lockstep

team = lockstep.join(shards=6, checkpoint_every="off")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(1200, 4), torch.randn(1200, 1))
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 12))
for batch in loader:
    for x, y in batch.shards:  # OTHERS
        team.backward((model(x) - y).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if team.step == 20 and team.rank == int(sys.argv[1]):
        sys.exit(0)  # CULPRIT
