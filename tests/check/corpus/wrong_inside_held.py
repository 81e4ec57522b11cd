"""Wrong inside, by way of an object: a name that Python finds at run time, a cache, a sample of the data set's own."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import *

import lockstep


def start(loader=None):
    team = lockstep.join(seed=1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    return (team, *team.prepare(model, optimizer, loader or DataLoader(data, 16, shuffle=True)))


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((6,), float(self.rng.normal())), index % 3  # LS109


def names_imported_by_a_star():
    team, *_ = start(DataLoader(Noisy(), 16))
    team.epochs(1)


def decided_by_the_last_shard():
    team, model, optimizer, loader = start()
    for batch in loader:
        worst, seen, all_low, odd = 0.0, 0, True, False
        for x, y in batch.shards:
            loss = F.cross_entropy(model(x), y)  # LS101
            worst = max(worst, loss.item())  # LS102
            seen += len(x)  # LS102
            all_low = all_low and loss < 1  # LS102
            if loss > 100:
                odd = True  # LS102
            team.backward(loss)
        if team.any(loss > 100) or team.any(worst < 0.1) or team.any(seen > 3) or team.any(all_low) or odd:
            break
        optimizer.step()
        optimizer.zero_grad()
