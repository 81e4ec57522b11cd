"""What a script can get wrong. Each function is one rank's script; ``told`` gives what it was told
instead of failing."""

import os
import warnings

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._base.errors import LockstepError


def rank():
    return int(os.environ["RANK"])


def points(length=8, features=2):
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(length, features, generator=generator), torch.randn(length, 1, generator=generator))


def train(model, loader, team, loss_of=None, after=None, **backward):
    """One epoch of the plain loop. ``after`` is called behind ``batch.shards``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for batch in loader:
        for inputs, targets in batch.shards:
            outputs = model(inputs)
            loss = (outputs - targets).square().mean() if loss_of is None else loss_of(team, outputs)
            team.backward(loss, **backward)
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after(team)
    return model


def told(script, *args):
    """The type, code and message of the error that ``script(team, *args)`` ends with."""
    with lockstep.join() as team:
        try:
            script(team, *args)
        except LockstepError as error:
            return type(error).__name__, error.code, str(error)
        return None


def run(script, *args):
    """A script whose error is not caught."""
    script(lockstep.join(), *args)


# Before any training


def no_parameters(team):
    team.prepare(nn.Sequential(nn.ReLU()))


def foreign_optimizer(team):
    team.prepare(nn.Linear(2, 1), torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1))


def optimizer_before_its_model(team):
    team.prepare(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1))


def backward_before_prepare(team):
    team.backward(torch.zeros((), requires_grad=True))


def backward_outside_the_loop(team):
    model, _ = team.prepare(nn.Linear(2, 1), DataLoader(points()))
    team.backward(model(torch.ones(1, 2)).sum())


def backward_behind_the_shards(team):
    model, loader = team.prepare(nn.Linear(2, 1), DataLoader(points(), 4))
    for batch in loader:
        for inputs, _ in batch.shards:
            loss = model(inputs).mean()
        team.backward(loss)


def nothing_prepared(team):
    team.prepare()


def strange_object(team):
    team.prepare(nn.Linear(2, 1), 3)


class Lookahead:
    """Steps another's optimizer, and is none of PyTorch's."""

    def step(self): ...


class Schedule(Lookahead):
    def state_dict(self): ...
    def load_state_dict(self, state): ...


def own_schedule(team):
    team.prepare(nn.Linear(2, 1), Schedule())


def lookahead(team):
    team.prepare(nn.Linear(2, 1), Lookahead())


def random_generator(team):
    team.prepare(nn.Linear(2, 1), torch.Generator())


def wrapped_in_ddp(team):
    team.prepare(DistributedDataParallel(nn.Linear(2, 1)))


def join_again(team):
    lockstep.join()


def sync_batchnorm(team):
    team.prepare(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))


def negative_epochs(team):
    list(team.epochs(-1))


def join_refused():
    """What ``join()`` said."""
    try:
        lockstep.join()
    except LockstepError as error:
        return str(error)


# Ranks that differ


def models_of_different_width(team):
    team.prepare(nn.Sequential(nn.Linear(2, 4 + team.rank), nn.Linear(4 + team.rank, 1)))


def models_of_different_type(team):
    team.prepare(nn.Linear(2, 2, dtype=torch.float64 if team.rank else torch.float32))


def models_frozen_differently(team):
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(team.rank == 0)
    team.prepare(model)


def data_of_different_length(team):
    team.prepare(nn.Linear(2, 1), DataLoader(points(8 + team.rank), 4))


def a_rank_with_more_objects(team):
    model = nn.Linear(2, 1)
    team.prepare(*[model, torch.optim.SGD(model.parameters(), lr=0.1)][: 2 - team.rank])


def settings_that_depend_on_the_rank():
    lockstep.join(seed=rank())


# Losses


def loss_as_a_number(team):
    train(nn.Linear(2, 1), DataLoader(points(), 4), team, lambda team, outputs: outputs.mean().item())


def loss_without_graph(team):
    train(nn.Linear(2, 1), DataLoader(points(), 4), team, lambda team, outputs: outputs.mean().detach())


def nan_loss(team):
    data = points(16)
    model, loader = team.prepare(nn.Linear(2, 1), DataLoader(data, 4))
    for batch in loader:
        for inputs, _ in batch.shards:
            is_bad = torch.equal(inputs[0], data[6][0])  # in step 2, shard 1
            team.backward(model(inputs).mean() * (float("nan") if is_bad else 1.0))


def nan_loss_and_on():
    """What was warned of on the way, and how far it came."""
    with lockstep.join() as team, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nan_loss(team)
        return team.step, [str(one.message) for one in caught if "NaN" in str(one.message)]


def weighted(team, weight_of):
    model = nn.Linear(2, 1)
    model, loader = team.prepare(model, DataLoader(points(12), 4))
    for batch in loader:
        for inputs, _ in batch.shards:
            team.backward(model(inputs).mean(), weight=weight_of[team.step - 1])


# In the loop


def sample_alone_in_a_shard(team, length, batch_size):
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)))
    train(model, DataLoader(points(length), batch_size), team)


class Forgetful(nn.Module):
    """After the first step it no longer uses its second layer."""

    def __init__(self, from_step=2, on_rank=None):
        super().__init__()
        self.first, self.second = nn.Linear(2, 1), nn.Linear(2, 1)
        self.steps, self.from_step, self.on_rank = 0, from_step, on_rank

    def forward(self, x):
        self.steps += 1
        forgets = self.steps >= self.from_step and self.on_rank in (None, rank())
        return self.first(x) if forgets else self.first(x) + self.second(x)


def unused_after_the_first_step(team, on_rank=None):
    train(Forgetful(on_rank=on_rank), DataLoader(points(16), 4), team)


def _all_reduce(team):
    team.all_reduce(torch.ones(1))


def collective_in_every_step(team):
    train(nn.Linear(2, 1), DataLoader(points(5), 4), team, after=_all_reduce)


# Data


class Never:
    """A batch sampler that yields nothing."""

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0


def never(team):
    train(nn.Linear(2, 1), DataLoader(points(), batch_sampler=Never()), team)


def empty_data(team):
    train(nn.Linear(2, 1), DataLoader(TensorDataset(torch.ones(0, 2), torch.ones(0, 1)), 4), team)
