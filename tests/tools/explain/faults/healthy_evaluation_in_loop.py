"""One rank evaluates for longer than ranks may wait for one that does nothing; a batch comes every
second."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lockstep

team = lockstep.join(shards=6, checkpoint_every="off")


class Slow(Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, index):
        time.sleep(0.1)
        return torch.zeros(4)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(480, 4), torch.randn(480, 1))
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 12))
for batch in loader:
    for x, y in batch.shards:
        team.backward((model(x) - y).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if team.step == 20 and team.rank == int(sys.argv[1]):
        for x in DataLoader(Slow(), 12, num_workers=1):
            team.unwrap(model)(x)
