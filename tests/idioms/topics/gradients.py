"""Gradients."""

import torch
from torch import nn
from torch.nn import functional

from topics.promises import differs, equal, refused
from topics.shared import dataset, gradients, make, mlp, prepared, step, train, update


@equal(plain=True)
def clip_norm(team):
    """`torch.nn.utils.clip_grad_norm_`."""
    model, optimizer, loader = team.prepare(*make())
    norms = []
    for batch in loader:
        gradients(team, model, batch)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3))
        update(optimizer)
    return model, norms


@equal(plain=True)
def parameter_hooks(team):
    """Parameter hooks that clamp gradients."""
    model, optimizer, loader = team.prepare(*make())
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))
    train(team, model, optimizer, loader)
    return model


@equal(found="LS201")
def gradients_replaced(team):
    """Gradients saved and restored."""
    model, optimizer, loader = prepared(team)
    last = None
    for batch in loader:
        gradients(team, model, batch)
        now = [p.grad.clone() for p in model.parameters()]
        for p, old, new in zip(model.parameters(), last or now, now, strict=True):
            p.grad = (old + new) / 2
        last = now
        update(optimizer)
    return model


@equal(plain=True, found="LS202")
def accumulated_by_hand(team):
    """Accumulation by hand."""
    model, optimizer, loader = team.prepare(*make(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)))
    for number, batch in enumerate(loader, 1):
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets) / 2)
        if number % 2 == 0:
            update(optimizer)
    return model, optimizer


@equal(accumulate=3)
def accumulate_setting(team):
    """`accumulate=3`, partial end."""
    model, optimizer, loader = prepared(team, mlp(), data=dataset(42))
    losses = []
    for batch in loader:
        step(team, model, optimizer, batch)
        losses.append((batch["loss"], batch.num_samples))
    return model, losses, len(loader), team.step


@differs('It covers this process\'s shards only: use `batch.add(loss=loss)`, `batch["loss"]` outside.', found="LS102")
def sum_by_hand(team):
    """A running sum of the shards' losses."""
    model, optimizer, loader = prepared(team)
    losses = []
    for batch in loader:
        total = 0.0
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            total += loss.item() * len(inputs) / batch.num_samples
        update(optimizer)
        losses.append(total)
    return model, losses


@refused(code="gradient-used-inside")
def clip_inside(team):
    """`clip_grad_norm_` inside `batch.shards`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        update(optimizer)


@equal()
def own_generator_outside(team):
    """An own generator, outside."""
    model, optimizer, loader = prepared(team)
    generator = torch.Generator().manual_seed(5)
    team.register("generator", generator)
    for batch in loader:
        gradients(team, model, batch)
        for p in model.parameters():
            p.grad += 0.01 * torch.randn(p.shape, generator=generator)
        update(optimizer)
    return model
