"""Trainings in which tensors share their memory. Each function is one rank's script."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class _Previous(nn.Module):
    """Keeps its last input in a buffer, and learns from the difference."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("previous", torch.zeros(2, 3))

    def forward(self, inputs):
        outputs = self.layer(inputs - 0.1 * self.previous)
        self.previous = inputs
        return outputs


class _Grid(nn.Module):
    """Learns an embedding of each row and each column of 2 x 3 places, behind a layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.rows, self.columns = (nn.Parameter(torch.ones(4)) for _ in range(2))
        self.places = nn.Parameter(torch.ones(3, 4))

    def forward(self, inputs):
        return (self.layer(inputs) + (self.rows[None] + self.columns[None]) + self.places.unsqueeze(0)).square()


def buffer_assigned():
    """Whether the data are as they were, and the weights, after a training with a buffer that is
    assigned."""
    with lockstep.join() as team:
        data = [torch.randn(4, 3, generator=torch.Generator().manual_seed(number)) for number in range(3)]
        before = [inputs.clone() for inputs in data]
        model = _Previous()
        model, optimizer, loader = team.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
        for _ in team.epochs(2):
            for batch in loader:
                for inputs in batch.shards:
                    team.backward(model(inputs).square().mean())
                optimizer.step()
                optimizer.zero_grad()
        return all(map(torch.equal, data, before)), team.unwrap(model).layer.weight.tolist()


def gradients_of_views(accumulate):
    """The gradients of a global batch, and the same without lockstep."""
    with lockstep.join() as team:
        inputs = torch.randn(8, 3, 4, generator=torch.Generator().manual_seed(0))
        model = _Grid()
        alone = torch.autograd.grad(model(inputs).mean(), list(model.parameters()))
        loader = DataLoader(TensorDataset(inputs), 8 // accumulate)
        model, loader = team.prepare(model, loader)
        for batch in loader:
            for (part,) in batch.shards:
                team.backward(model(part).mean())
        return [parameter.grad.tolist() for parameter in model.parameters()], [gradient.tolist() for gradient in alone]
