"""Averages of weights."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader

from topics.promises import differs, equal, refused
from topics.shared import dataset, evaluated, gradients, make, mlp, prepared, shuffled, step, train, update


@equal(plain=True, found="LS204")
def ema_by_hand(team):
    """EMA by hand."""
    model, optimizer, loader = make()
    average = copy.deepcopy(model)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for batch in loader:
        step(team, model, optimizer, batch)
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.1)
    return model, average


@equal(plain=True)
def averaged_model(team):
    """AveragedModel."""
    model, optimizer, loader = make()
    average = AveragedModel(model)
    model, average, optimizer, loader = team.prepare(model, average, optimizer, loader)
    for batch in loader:
        step(team, model, optimizer, batch)
        average.update_parameters(model)
    return model, average


@equal(found="LS204")
def averaged_model_ema(team):
    """AveragedModel, unprepared."""
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    model, optimizer, loader = prepared(team, model, data=dataset(shape=(2, 6)))
    for batch in loader:
        step(team, model, optimizer, batch)
        if team.step % 2 == 0:
            average.update_parameters(model)
    return model, average


@equal()
def swa(team):
    """SWA with `update_bn`."""
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model)
    schedule = SWALR(optimizer, swa_lr=0.02, anneal_epochs=1)
    data = dataset(shape=(2, 6))
    plain_loader = DataLoader(data, 10)
    model, average, optimizer, schedule, loader = team.prepare(model, average, optimizer, schedule, shuffled(data))
    for epoch in team.epochs(2):
        train(team, model, optimizer, loader)
        if epoch >= 1:
            average.update_parameters(model)
            schedule.step()
    update_bn(plain_loader, average)
    return model, average, schedule


@equal(found="LS203")
def ema_swapped_for_evaluation(team):
    """Averages swapped in for evaluation."""
    model, data = mlp(), dataset()
    model, optimizer, loader = prepared(team, model, data=data)
    average = [p.detach().clone() for p in model.parameters()]
    results = []
    for _ in team.epochs(2):
        for batch in loader:
            step(team, model, optimizer, batch)
            for a, p in zip(average, model.parameters(), strict=True):
                a.lerp_(p.detach(), 0.2)
        kept = [p.detach().clone() for p in model.parameters()]
        for p, a in zip(model.parameters(), average, strict=True):
            p.data.copy_(a)
        evaluation = evaluated(team, model, DataLoader(data, 8))
        for p, old in zip(model.parameters(), kept, strict=True):
            p.data.copy_(old)
        results.append(evaluation["loss"])
    return model, average, results


@equal(found="LS201")
def best_weights_kept(team):
    """Best weights restored."""
    model, optimizer, loader = prepared(team)
    best, best_weights = float("inf"), None
    for batch in loader:
        gradients(team, model, batch)
        if batch["loss"] < best:
            best, best_weights = batch["loss"], copy.deepcopy(model.state_dict())
        update(optimizer)
    model.load_state_dict(best_weights)
    return model, best


@differs("The average moves once per shard of this process. Update it outside, after `optimizer.step()`.", found="LS106")
def ema_by_hand_inside(team):
    """EMA by hand inside."""
    model = mlp()
    average = copy.deepcopy(model)
    model, optimizer, loader = prepared(team, model)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            with torch.no_grad():
                for a, p in zip(average.parameters(), model.parameters(), strict=True):
                    a.lerp_(p, 0.1)
        update(optimizer)
    return model, average


@refused(code="inside-shards")
def ema_inside(team):
    """`AveragedModel.update_parameters` inside."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model)
    model, average, optimizer, loader = team.prepare(model, average, optimizer, DataLoader(dataset(), 10))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            average.update_parameters(model)
        update(optimizer)


@equal(found="LS204")
def ema_copied_after_prepare(team):
    """EMA in a `copy.deepcopy`."""
    model, data = mlp(), dataset()
    model, optimizer, loader = prepared(team, model, data=data)
    average = copy.deepcopy(model)
    for batch in loader:
        step(team, model, optimizer, batch)
        for a, p in zip(average.parameters(), model.parameters(), strict=True):
            a.data.lerp_(p.data, 0.2)
    with team.evaluate(average, DataLoader(data, 7)) as evaluation:
        for batch in evaluation:
            for inputs, targets in batch.shards:
                batch.add(loss=functional.cross_entropy(average(inputs), targets))
    return model, average, evaluation["loss"]


@equal(found="LS204")
def averaged_model_after_prepare(team):
    """AveragedModel of the prepared model."""
    model, optimizer, loader = prepared(team)
    average = AveragedModel(model)
    for batch in loader:
        step(team, model, optimizer, batch)
        average.update_parameters(model)
    return model, average
