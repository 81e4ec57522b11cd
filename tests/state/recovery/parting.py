"""Trainings in which one rank changes a part of its state: after the last step, for each part that
the ranks compare, and before each kind of save."""

import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import lockstep
from lockstep._state.checkpoint.manifest import Manifest


class Counter:
    def __init__(self):
        self.count, self.last = 0, torch.zeros(1)

    def state_dict(self):
        return {"count": self.count, "last": self.last}

    def load_state_dict(self, state):
        self.count, self.last = state["count"], state["last"]


class Things:
    """All that the training has."""

    def __init__(self, team):
        data = TensorDataset(torch.arange(16.0).reshape(8, 2))
        self.own = torch.Generator().manual_seed(1)
        loader = DataLoader(data, 4, sampler=RandomSampler(data, generator=self.own))
        self.model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.average = AveragedModel(self.model)
        prepared = team.prepare(self.model, self.optimizer, self.schedule, self.average, loader)
        self.trained, self.loader = prepared[0], prepared[-1]
        self.tensor = team.register("tensor", torch.zeros(2))
        self.table = team.register("table", {"nested": [{"deep": (1, 2)}], "tensor": torch.zeros(1)})
        self.torch_numbers = team.register("torch", torch.Generator().manual_seed(1))
        self.numpy_numbers = team.register("numpy", np.random.default_rng(1))
        self.plain_numbers = team.register("python", random.Random(1))
        self.counter = team.register("counter", Counter())
        self.state = team.state(value=0)


PARTS = {
    "Python's random": lambda things: random.random(),
    "NumPy's random": lambda things: np.random.rand(),
    "torch's random": lambda things: torch.rand(()),
    "a weight": lambda things: things.model[0].weight.data.view(-1)[3:].add_(1),
    "a buffer": lambda things: things.model[1].running_mean.add_(1),
    "a counter in a buffer": lambda things: things.model[1].num_batches_tracked.add_(1),
    "a learning rate": lambda things: things.optimizer.param_groups[0].update(lr=0.2),
    "a momentum": lambda things: next(iter(things.optimizer.state.values()))["momentum_buffer"].add_(1),
    "a schedule": lambda things: setattr(things.schedule, "last_epoch", 5),
    "an average": lambda things: things.average.module[0].bias.data.add_(1),
    "a registered tensor": lambda things: things.tensor.add_(1),
    "a registered value": lambda things: things.table["nested"][0].update(deep=(1, 3)),
    "a tensor in a registered table": lambda things: things.table["tensor"].add_(1),
    "a generator of torch": lambda things: torch.rand((), generator=things.torch_numbers),
    "a generator of NumPy": lambda things: things.numpy_numbers.random(),
    "a generator of Python": lambda things: things.plain_numbers.random(),
    "an object of the script": lambda things: setattr(things.counter, "count", 1),
    "a tensor in an object of the script": lambda things: things.counter.last.add_(1),
    "a value of team.state": lambda things: setattr(things.state, "value", 1),
    "the generator of a sampler": lambda things: torch.rand((), generator=things.own),
}


def codes():
    """The code of the error on this rank, for each part; "": none."""
    return {name: code_of(change) for name, change in {"nothing": lambda things: None, **PARTS}.items()}


def code_of(change):
    try:
        with lockstep.join(shards=2, checkpoint_every="off", fresh=True) as team:
            things = Things(team)
            for batch in things.loader:
                for (inputs,) in batch.shards:
                    team.backward(things.trained(inputs).square().mean())
                things.optimizer.step()
                things.optimizer.zero_grad()
                things.schedule.step()
                things.average.update_parameters(things.model)
                if team.step == 2 and team.rank == 1:  # the last one: no later step shows it
                    change(things)
    except lockstep.MismatchError as error:
        return error.code
    return ""


PLACES = ("before the end of an epoch", "before the end of the last epoch", "before the best weights")


def saved_in_spite():
    """The code of the error, and what was saved, where rank 1 changes its weights before a save."""
    return {place: saved_after(place) for place in PLACES}


def saved_after(place):
    run_dir = Path(place.replace(" ", "-"))
    # the checkpoint at the end of an epoch has been due since the epoch's last step
    every = 2 if place == PLACES[0] else 1000
    try:
        with lockstep.join(shards=2, checkpoint_every=every, run_dir=str(run_dir)) as team:
            train(team, lambda model, epoch: change_weights(team, model, place, epoch))
    except lockstep.MismatchError as error:
        return error.code, saved_in(run_dir)
    return "", saved_in(run_dir)


def train(team, after_epoch):
    model, loader = team.prepare(nn.Linear(2, 2), DataLoader(TensorDataset(torch.ones(8, 2)), 4))
    for epoch in team.epochs(2):
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).square().mean())
        if after_epoch(model, epoch):
            break
    return team.unwrap(model)


def change_weights(team, model, place, epoch):
    if team.rank == 1 and epoch == (place == PLACES[1]):
        with torch.no_grad():
            team.unwrap(model).weight.add_(1)
    if place == PLACES[2]:
        team.best(1.0)


def saved_in(run_dir):
    return sorted(path.name for path in run_dir.glob("checkpoints/step-*")) + [path.name for path in run_dir.glob("best")]


def changed_at_the_end():
    """The only checkpoint, and whether it is of a finished run and has the trained weights, where
    rank 0 alone changes them behind its epochs, which end or are left by break."""
    return {way: end_of(way) for way in ("end", "break")}


def end_of(way):
    run_dir = Path(way)
    with lockstep.join(shards=2, checkpoint_every=1000, run_dir=str(run_dir)) as team:
        model = train(team, lambda model, epoch: way == "break")
        trained = model.weight.detach().clone()
        if team.rank == 0:
            with torch.no_grad():
                model.weight.add_(1)
    [newest] = (run_dir / "checkpoints").glob("step-*")
    is_trained = torch.equal(lockstep.load_weights(newest)["weight"], trained)
    return newest.name, Manifest.read(newest).finished, is_trained
