"""What idioms share: a small model, its data, and the ordinary step. What an idiom is about, it
writes out itself."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def dataset(num_samples=22, shape=(6,)):
    """Samples of a shape, each of one of three classes."""
    return TensorDataset(torch.randn(num_samples, *shape), torch.randint(0, 3, (num_samples,)))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def shuffled(data):
    """Batches of 10 samples in random order."""
    return DataLoader(data, 10, shuffle=True)


def prepared(team, model=None, optimizer=None, data=None, loader=None):
    """The model, its optimizer, and a loader."""
    model = mlp() if model is None else model
    optimizer = sgd(model.parameters()) if optimizer is None else optimizer
    if loader is None:
        loader = shuffled(dataset() if data is None else data)
    return team.prepare(model, optimizer, loader)


def make(optimizer=sgd):
    """The same, not prepared: in a state and an order that a loop without lockstep has, too."""
    torch.manual_seed(0)
    model = mlp()
    return model, optimizer(model.parameters()), DataLoader(dataset(), 10)


def gradients(team, model, batch):
    """Leave the gradients of the mean loss over a global batch."""
    for inputs, targets in batch.shards:
        loss = functional.cross_entropy(model(inputs), targets)
        team.backward(loss)
        batch.add(loss=loss)


def update(optimizer):
    optimizer.step()
    optimizer.zero_grad()


def step(team, model, optimizer, batch):
    gradients(team, model, batch)
    update(optimizer)


def train(team, model, optimizer, loader):
    """Take a step for each batch, and return the losses."""
    losses = []
    for batch in loader:
        step(team, model, optimizer, batch)
        losses.append(batch["loss"])
    return losses


def trained(team, optimizer=sgd):
    """What ordinary training with an optimizer comes to."""
    model, optimizer, loader = team.prepare(*make(optimizer))
    losses = train(team, model, optimizer, loader)
    return model, optimizer, losses


def evaluated(team, model, loader):
    """The loss over a dataset."""
    with team.evaluate(model, loader) as evaluation:
        for batch in evaluation:
            for inputs, targets in batch.shards:
                batch.add(loss=functional.cross_entropy(model(inputs), targets))
    return evaluation
