"""Weights that are frozen, pruned or written."""

import copy
import random

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.utils.data import TensorDataset

from topics.promises import equal, refused
from topics.shared import dataset, make, mlp, prepared, step, train, update


@equal()
def spectral_norm(team):
    """Spectral norm."""
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
    model, optimizer, loader = prepared(team, model)
    train(team, model, optimizer, loader)
    return model


@equal()
def frozen_backbone(team):
    """A frozen backbone."""
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    model, optimizer, loader = prepared(team, model, optimizer)
    train(team, model, optimizer, loader)
    return model, optimizer


@equal(plain=True)
def frozen_in_mid_run(team):
    """A layer frozen mid-run."""
    model, optimizer, loader = team.prepare(*make(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)))
    for batch in loader:
        if team.step == 3:
            model[0].requires_grad_(False)
        step(team, model, optimizer, batch)
    return model, optimizer


@equal()
def frozen_at_random(team):
    """Parameters frozen at random."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for p in model.parameters():
            p.requires_grad_(random.random() < 0.7)
        model[0].weight.requires_grad_(True)
        step(team, model, optimizer, batch)
    return model


class LoRA(nn.Module):
    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.randn(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.down.T @ self.up.T


@equal()
def lora(team):
    """LoRA."""
    model = mlp()
    model[0], model[2] = LoRA(model[0]), LoRA(model[2])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    model, optimizer, loader = prepared(team, model, optimizer)
    train(team, model, optimizer, loader)
    return model, optimizer


@refused(code="weights-changed-inside")
def embedding_max_norm(team):
    """An embedding with `max_norm`."""
    model = nn.Sequential(nn.Embedding(20, 6, max_norm=1.0), nn.Flatten(), nn.Linear(12, 3))
    data = TensorDataset(torch.randint(0, 20, (22, 2)), torch.randint(0, 3, (22,)))
    model, optimizer, loader = prepared(team, model, data=data)
    train(team, model, optimizer, loader)


@equal()
def pruned_by_torch(team):
    """`torch.nn.utils.prune`."""
    model = mlp()
    prune.random_unstructured(model[0], "weight", amount=0.5)
    model, optimizer, loader = prepared(team, model)
    train(team, model, optimizer, loader)
    return model


@equal(found="LS201")
def lottery_ticket(team):
    """A lottery ticket."""
    model, optimizer, loader = prepared(team)
    start = copy.deepcopy(model.state_dict())
    mask = torch.ones_like(model[0].weight)
    for epoch in team.epochs(2):
        for batch in loader:
            step(team, model, optimizer, batch)
            model[0].weight.data *= mask
        if epoch == 0:
            mask = (model[0].weight.abs() > model[0].weight.abs().median()).float()
            model.load_state_dict(start)
            model[0].weight.data *= mask
    return model, mask


@refused(code="gradient-of-unprepared")
def growing_model(team):
    """A layer added mid-run."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        if team.step == 2:
            model.add_module("more", nn.Linear(3, 3))
            optimizer.add_param_group({"params": team.unwrap(model).more.parameters()})
        step(team, model, optimizer, batch)


@equal()
def lazy_layers(team):
    """Lazy layers."""
    model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3))
    data = dataset()
    model(data[0][0][None])
    model, optimizer, loader = prepared(team, model, data=data)
    train(team, model, optimizer, loader)
    return model


@refused(code="model-lazy")
def lazy_layers_not_run(team):
    """Lazy layers prepared before their first input."""
    model, optimizer, loader = prepared(team, nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, 3)))
    train(team, model, optimizer, loader)


@refused(code="weights-changed-inside")
def written_inside(team):
    """Weights clamped inside."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-0.2, 0.2)
        update(optimizer)


@refused(code="weights-changed-inside")
def written_inside_through_data(team):
    """Weight decay through `p.data` inside."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            for p in model.parameters():
                p.data *= 0.99
        update(optimizer)


class Momentum(nn.Module):
    """MoCo's encoders."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(6, 3), nn.Linear(6, 3).requires_grad_(False)

    def forward(self, inputs):
        for query, key in zip(self.query.parameters(), self.key.parameters(), strict=True):
            key.data = 0.9 * key.data + 0.1 * query.data
        return self.query(inputs) + self.key(inputs)


@refused(code="weights-changed-inside")
def momentum_in_forward(team):
    """Weights moved in `forward` (`p.data = ...`)."""
    model = Momentum()
    model, optimizer, loader = prepared(team, model, torch.optim.SGD(model.query.parameters(), lr=0.1))
    train(team, model, optimizer, loader)


@refused(code="weights-changed-inside")
def frozen_inside(team):
    """A layer frozen inside."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            if loss < 1.1:
                model[0].requires_grad_(False)
        update(optimizer)
