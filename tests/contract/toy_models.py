"""Toy models, and data whose samples draw noise, for the trainings of this folder."""

import random

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset


class Points(Dataset):
    """Samples with noise from all three generators that user code draws from; each knows its
    index."""

    def __init__(self, length, features=6):
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(length, features, generator=generator)
        self.targets = torch.randint(0, 3, (length,), generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        noise = torch.rand(()) + random.random() + numpy.random.random()
        return self.inputs[index] + 0.1 * float(noise), self.targets[index], index


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        # No bias: BatchNorm takes it away, its gradient is rounding error, and Adam makes a full
        # step of that.
        self.first = nn.Linear(6, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.drop(functional.relu(self.norm(self.first(x)))))


class Plain(nn.Module):
    """No BatchNorm, so that shards of one sample are welcome."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class SometimesUnused(Plain):
    """One layer is never used, another only for shards whose first input is large."""

    def __init__(self):
        super().__init__()
        self.never = nn.Linear(6, 8)
        self.sometimes = nn.Linear(6, 8)

    def forward(self, x):
        hidden = self.first(x)
        if x[0, 0] > 0.9:
            hidden = hidden + self.sometimes(x)
        return self.last(torch.tanh(hidden))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, (2, 3)).to(memory_format=torch.channels_last)
        self.conv2 = nn.Conv2d(4, 5, 1).to(memory_format=torch.channels_last)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        image = x.view(-1, 1, 2, 3).contiguous(memory_format=torch.channels_last)
        return self.last(torch.tanh(self.conv2(torch.tanh(self.conv(image)))).flatten(1))


class CodeBook(Plain):
    """Writes a buffer through ``.data``, which PyTorch does not count as a change; another is not
    saved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("book", torch.zeros(8))
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, x):
        if self.training:
            self.book.data.mul_(0.9).add_(self.first(x).detach().mean(0), alpha=0.1)
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.last(torch.tanh(self.first(x) + self.book + self.mean.sum()))


class HandNorm(Plain):
    """Batch statistics kept by hand, in native code."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x):
        return self.last(torch.tanh(functional.batch_norm(self.first(x), self.mean, self.var, training=self.training)))
