"""Scripts with gradients and weights that lockstep does not combine. Each function is one rank's
script."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Two(nn.Module):
    """Layers that a loss can use apart."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs):
        return self.last(self.first(inputs))


def told(script, *args):
    """The code and message of the error in which ``script(team, ...)`` ends; None: it does not."""
    with lockstep.join() as team:
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(80, 2)), 8)
        try:
            script(team, *team.prepare(model, optimizer, loader), *args)
        except lockstep.LockstepError as error:
            return error.code, str(error)
        return None


def backward_beside(team, model, optimizer, loader, when, layer):
    """A plain backward pass beside ``team.backward`` that reaches the first layer, or only the last
    one."""
    for batch in loader:
        for (inputs,) in batch.shards:
            if when == "after":
                team.backward(model(inputs).square().mean())
            reached = model(inputs) if layer == "first" else model.last(inputs)
            reached.square().mean().backward()
            if when == "before":
                team.backward(model(inputs).square().mean())
        optimizer.step()


def backward_for_inputs(team, model, optimizer, loader):
    """Backward passes that leave the gradients of weights alone."""
    for batch in loader:
        for (inputs,) in batch.shards:
            inputs.requires_grad_(True)
            for _ in range(2):
                torch.autograd.grad(model(inputs).square().mean(), [inputs, *model.parameters()])
                model(inputs).square().mean().backward(inputs=[inputs])
                team.backward(model(inputs).square().mean())
        model(torch.ones(1, 2)).mean().backward()  # outside, the same on every rank
        optimizer.step()
        optimizer.zero_grad()


def forget_from(team, model, optimizer, loader, first, use):
    """Train a layer that was not prepared from some step on, and use its gradient outside."""
    extra = nn.Linear(2, 2)
    its_optimizer = torch.optim.Adam(extra.parameters(), lr=0.1)
    for batch in loader:
        for (inputs,) in batch.shards:
            outputs = model(inputs) if team.step < first else extra(model(inputs))
            team.backward(outputs.square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if use == "step":
            its_optimizer.step()
        elif use == "norm" and extra.weight.grad is not None:
            extra.weight.grad.norm()
        elif use == "nothing":
            copy.deepcopy(extra)
            extra.state_dict()
        its_optimizer.zero_grad()


def train_apart(team, model, optimizer, loader):
    """A model that was not prepared, trained by a plain backward pass inside and its optimizer
    outside."""
    critic = nn.Linear(2, 1)
    its_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    for batch in loader:
        for (inputs,) in batch.shards:
            outputs = model(inputs)
            critic(outputs.detach()).square().mean().backward()
            team.backward(outputs.square().mean())
        optimizer.step()
        optimizer.zero_grad()
        its_optimizer.step()
        its_optimizer.zero_grad()


def train_outside(team, model, optimizer, loader):
    """A model that was not prepared, trained outside: the same on every rank, and its gradients
    stay over several steps."""
    critic = nn.Linear(2, 1)
    its_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    for batch in loader:
        for (inputs,) in batch.shards:
            team.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        critic(torch.ones(3, 2)).mean().backward()
        its_optimizer.step()
        if team.step % 3 == 0:
            its_optimizer.zero_grad()


def no_gradient_for_a_scaler(team, model, optimizer, loader):
    """A GradScaler of the script's, and no backward pass."""
    scaler = team.prepare(torch.amp.GradScaler("cpu"))
    for batch in loader:
        for (inputs,) in batch.shards:
            scaler.scale(model(inputs).square().mean())
        scaler.step(optimizer)
        scaler.update()


def prepare_late(team, model, optimizer, loader):
    """A model that is prepared after it got gradients of which nothing was made."""
    extra = nn.Linear(2, 2)
    for batch in loader:
        if team.step == 3:
            extra = team.prepare(extra)
            its_optimizer = team.prepare(torch.optim.SGD(extra.parameters(), lr=0.1))
        for (inputs,) in batch.shards:
            team.backward(extra(model(inputs)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if team.step >= 3:
            its_optimizer.step()
            its_optimizer.zero_grad()


def write_through_data(team, model, optimizer, loader, step, how):
    """Change weights inside, where PyTorch does not count it, once in a while."""
    for batch in loader:
        for (inputs,) in batch.shards:
            if team.step == step and how == "exchanged":
                model.last.weight.data = model.last.weight.data * 0.9
            if team.step == step and how == "in place":
                model.last.weight.data.mul_(0.9)
            if how == "moved and moved back":
                weights = model.last.weight.data
                model.last.weight.data = weights * 0.9
                team.backward(model(inputs).square().mean())
                model.last.weight.data = weights
            else:
                team.backward(model(inputs).square().mean())
        for parameter in model.parameters():  # outside, the same on every rank
            parameter.data = parameter.data * 0.99
        optimizer.step()
        optimizer.zero_grad()
