"""Trainings that are traced, as functions for the crew."""

import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def weights(length):
    """Train on ``length`` samples; the final weights, and what came after the loop."""
    team = lockstep.join()
    inputs = torch.linspace(-1, 1, 4 * length).reshape(length, 4)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 8, shuffle=True)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    after, ended = [], None
    try:
        for epoch in team.epochs(2):
            for batch in loader:
                for x, y in batch.shards:
                    team.backward(nn.functional.mse_loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
            after.append(epoch)
    except SystemExit as error:
        ended = error.code
    result = [parameter.detach().clone() for parameter in model.parameters()]
    team.close()
    return result, after, ended


def phases(length):
    """Two phases a step, each with a model and an update of its own."""
    team = lockstep.join()
    inputs = torch.linspace(-1, 1, 4 * length).reshape(length, 4)
    models = nn.Linear(4, 1), nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    *models, first, second, loader = team.prepare(*models, *optimizers, DataLoader(TensorDataset(inputs), 4))
    for batch in loader:
        for model, optimizer in zip(models, (first, second), strict=True):
            optimizer.zero_grad()
            for (x,) in batch.shards:
                team.backward(model(x).square().mean())
            optimizer.step()


def left_in_a_step(length):
    """Left in the second step before anything was learnt in it; then another pass."""
    team = lockstep.join()
    inputs = torch.linspace(-1, 1, 4 * length).reshape(length, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(TensorDataset(inputs), 4))
    for _ in range(2):
        for number, batch in enumerate(loader):
            if number == 1:
                break
            for (x,) in batch.shards:
                team.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()


def failed_in_a_step(length):
    """An error in the last shard of the second step, which ends the training."""
    team = lockstep.join()
    model = nn.Linear(4, 1)
    model, loader = team.prepare(model, DataLoader(TensorDataset(torch.ones(length, 4)), 4))
    with contextlib.suppress(KeyError):
        for batch in loader:
            for (x,) in batch.shards:
                team.backward(model(x).square().mean())
                if (team.step, team.shard) == (2, 1):
                    raise KeyError(x)


def two_loaders_and_evaluation():
    team = lockstep.join()
    inputs = torch.linspace(-1, 1, 32).reshape(8, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = (DataLoader(TensorDataset(values), 4) for values in (inputs, 2 * inputs))
    model, optimizer, first, second = team.prepare(model, optimizer, first, second)
    for one, two in zip(first, second, strict=True):
        for (x,), (y,) in zip(one.shards, two.shards, strict=True):
            team.backward((model(x) - model(y)).square().mean())
        optimizer.step()
    with team.evaluate(model, DataLoader(TensorDataset(inputs), 4)) as evaluation:
        for batch in evaluation:
            for (x,) in batch.shards:
                batch.add(loss=model(x).mean())
