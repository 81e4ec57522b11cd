"""Layers and calls without a deterministic kernel on a GPU, and those that have one."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lockstep


class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.pad = nn.ReflectionPad2d(1)  # LS401
        self.edge = nn.ReplicationPad2d(1)
        self.whole = nn.AdaptiveAvgPool2d(1)
        self.pair = nn.AdaptiveAvgPool2d((1, 1))
        self.unknown = nn.AdaptiveAvgPool2d(size)
        self.smooth = nn.Upsample(scale_factor=2, mode="bilinear")
        self.embed = nn.EmbeddingBag(9, 4)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.pad(x), output_size=(7, 7))  # LS401
        x = F.adaptive_max_pool2d(x.cpu(), (2, 2)).to(x.device)
        x = self.whole(self.edge(x)) + self.pair(x) + self.unknown(x)
        x = F.interpolate(x, None, 2, "bicubic")  # LS401
        return F.pad(self.smooth(x), (1, 1), mode="replicate")


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.seven = nn.AdaptiveAvgPool2d((7, 7))  # LS401
        self.bag = nn.EmbeddingBag(9, 4, mode="max")  # LS401
        self.first = nn.Conv2d(3, 3, 3, padding_mode="reflect")  # LS401
        self.second = nn.Conv1d(3, 3, 3, padding_mode="circular")

    def forward(self, x, options):
        x = F.pad(x, (1, 1, 1, 1), "reflect")  # LS401
        x = F.interpolate(x, **options) + F.interpolate(x, scale_factor=2)
        return self.seven(self.first(x)) + F.grid_sample(x, x)  # lockstep: ok LS401


class Pictures(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return F.pad(torch.zeros(1, 8, 8), (2, 2), mode="reflect"), torch.histc(torch.ones(4))


team = lockstep.join(shards=8)
model, heads = Net(3), Heads()
criterion = nn.CTCLoss()  # LS401
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, heads, optimizer, loader = team.prepare(model, heads, optimizer, DataLoader(Pictures(), 16))
for batch in loader:
    for x, counts in batch.shards:
        y = heads(model(x), {"mode": "nearest"})
        middle = torch.median(y, 1).values  # LS401
        weighted = torch.bincount(counts, weights=y)  # LS401
        plain = torch.bincount(counts).sum() + torch.median(y)
        team.backward(criterion(y, counts, (8,), (3,)) + middle.sum() + weighted.sum() + plain)
    optimizer.step()
    optimizer.zero_grad()
