"""A loader worker of one rank is stopped by a signal."""

import os
import signal
import sys
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset

import lockstep

team = lockstep.join(shards=6, checkpoint_every="off")


class Images(Dataset):
    def __len__(self):
        return 2400

    def __getitem__(self, index):
        if index > 400 and team.rank == int(sys.argv[1]):
            threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGSTOP)).start()
            time.sleep(3)  # CULPRIT
        return torch.zeros(4), torch.zeros(1)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Images(), 12, num_workers=1))
for batch in loader:
    for x, y in batch.shards:
        team.backward((model(x) - y).square().mean())
    optimizer.step()
    optimizer.zero_grad()
