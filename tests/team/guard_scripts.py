"""Scripts that do what nobody thought of. Each function is one rank's script."""

import multiprocessing
import os
import random

import torch
from team_scripts import linear, numbers
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import lockstep


def part(how, at_step, num_steps=12):
    """Train, and let rank 1 do something else behind a step. The message of what came of it."""
    team = lockstep.join(checkpoint_every=1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(numbers(4 * num_steps), 4))
    table = team.register("table", torch.zeros(3))
    try:
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()
            if team.rank == 1 and team.step == at_step:
                _go_astray(how, model, optimizer, table)
        team.close()
    except lockstep.MismatchError as error:
        return team.step, str(error), str(team.run_dir)
    return team.step, "", str(team.run_dir)


def _go_astray(how, model, optimizer, table):
    with torch.no_grad():
        if how == "weights":
            model.weight.data.add_(0.5)
        elif how == "state":
            optimizer.state[next(iter(model.parameters()))]["momentum_buffer"].add_(0.5)
        elif how == "rate":
            optimizer.param_groups[0]["lr"] *= 1.000001
        elif how == "registered":
            table[2] = 1e-9
        elif how == "stream":
            random.random()


def draw(seed, where):
    """What a run shuffles and drops with a seed of the script's own."""
    if where == "before":
        torch.manual_seed(seed)
    with lockstep.join() as team:
        if where == "after":
            torch.manual_seed(seed)
        model, loader = team.prepare(linear(), DataLoader(numbers(16), 4, shuffle=True))
        samples, drawn = [], []
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
                samples += inputs.flatten().tolist()
                drawn.append(torch.rand(()).item())
            drawn.append(torch.rand(()).item())
        return samples, drawn


def seed_by_rank():
    with lockstep.join() as team:
        torch.manual_seed(team.rank)
        team.prepare(linear(), DataLoader(numbers(16), 4))


LOSSES = {
    "mean": lambda output: nn.functional.mse_loss(output, torch.ones_like(output)),
    "sum by the loss": lambda output: nn.functional.mse_loss(output, torch.ones_like(output), reduction="sum"),
    "sum by hand": lambda output: output.square().sum(),
    "sum, divided": lambda output: output.square().sum() / len(output),
}


def train_with(name, reduction):
    """The weight after a step with this loss, or the message of the error."""
    with lockstep.join() as team:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(numbers(8), 8))
        try:
            for batch in loader:
                for (inputs,) in batch.shards:
                    team.backward(LOSSES[name](model(inputs)), reduction=reduction)
                optimizer.step()
        except lockstep.LossError as error:
            return str(error)
        return model.weight.item()


def _train_and_leave(how):
    team = lockstep.join(run_dir="left", progress="off", threads=1)
    model, loader = team.prepare(linear(), DataLoader(numbers(8), 4))
    for _ in team.epochs(2):
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
    if how == "os._exit":
        os._exit(0)


def leave(method, how):
    """A child of multiprocessing trains to the end, and leaves. Its exit status."""
    child = multiprocessing.get_context(method).Process(target=_train_and_leave, args=(how,))
    child.start()
    child.join()
    return child.exitcode


def best_of_each():
    """``team.best`` with a value of this rank's own."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(8), 4))
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
        team.best(float(team.rank))


def log_unlike():
    """``team.log`` outside of the shards with a value of this rank's own."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(8), 4))
        for batch in loader:
            for (inputs,) in batch.shards:
                loss = model(inputs).mean()
                team.backward(loss)
            team.log(loss=loss)


USES = {
    "clip_grad_norm_": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "clip_grad_value_": lambda model: nn.utils.clip_grad_value_(model.parameters(), 1.0),
    "by hand": lambda model: [p.grad.mul_(0.5) for p in model.parameters() if p.grad is not None],
    "norm": lambda model: model.weight.grad.norm().item(),
    "data": lambda model: model.weight.grad.data.add_(1.0),
    "print": lambda model: print(model.weight.grad),
}


def use_gradients(how):
    """Use gradients inside the shards, and train on. The message of the error, and the gradient in the end."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(8), 8))
        message = ""
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
                try:
                    USES[how](model)
                except lockstep.UsageError as error:
                    message = str(error)
        return message, model.weight.grad.item(), type(model.weight.grad)


class Split(IterableDataset):
    """A stream that leaves each rank a part of its own."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        return ((torch.tensor([float(number)]),) for number in range(self.rank, 16, self.world_size))


def split_stream():
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(Split(team.rank, team.world_size), 8))
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
