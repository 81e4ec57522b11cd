"""Trainings that are traced, as functions for the crew."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def weights(length, world_ends=False, stop_after=None, **_):
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
            for x, y in loader:
                team.backward(nn.functional.mse_loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                if stop_after is not None and team.step == stop_after and team.ends_step:
                    break
            after.append(epoch)
    except SystemExit as error:
        ended = error.code
    result = [parameter.detach().clone() for parameter in model.parameters()]
    team.close()
    return result, after, ended


def small(length):
    """As above without BatchNorm, so that a shard may have one sample."""
    team = lockstep.join()
    inputs = torch.linspace(-1, 1, 4 * length).reshape(length, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(TensorDataset(inputs), 4))
    for (x,) in loader:
        team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def two_loaders_and_evaluation():
    team = lockstep.join()
    inputs = torch.linspace(-1, 1, 32).reshape(8, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = (DataLoader(TensorDataset(values), 4) for values in (inputs, 2 * inputs))
    model, optimizer, first, second = team.prepare(model, optimizer, first, second)
    for (x,), (y,) in zip(first, second, strict=True):
        team.backward((model(x) - model(y)).square().mean())
        optimizer.step()
    with team.evaluate(model, DataLoader(TensorDataset(inputs), 4)) as batches:
        for (x,) in batches:
            batches.add(loss=model(x).mean())


def seen_workers():
    team = lockstep.join()
    loader = DataLoader(TensorDataset(torch.zeros(8, 1)), 4, num_workers=1)
    model, prepared = team.prepare(nn.Linear(1, 1), loader)
    for (x,) in prepared:
        team.backward(model(x).mean())
    return loader.num_workers
