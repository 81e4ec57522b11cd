"""Gradients."""

import torch
from torch import nn
from torch.nn import functional

from topics.promises import differs, equal, refused
from topics.shared import dataset, gradients, make, mlp, prepared, shuffled, step, train, update


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


@equal()
def clip_norm_by_team(team):
    """`team.clip_grad_norm_`."""
    model, optimizer, loader = prepared(team)
    norms = []
    for batch in loader:
        gradients(team, model, batch)
        norms.append(team.clip_grad_norm_(model.parameters(), 0.3))
        update(optimizer)
    return model, norms


@equal()
def adaptive_clipping(team):
    """Adaptive clipping (AGC)."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        gradients(team, model, batch)
        for p in model.parameters():
            limit = 0.05 * p.detach().reshape(len(p), -1).norm(dim=1).clamp(min=0.001)
            norm = p.grad.reshape(len(p), -1).norm(dim=1)
            p.grad *= (limit / norm.clamp(min=1e-6)).clamp(max=1.0).reshape(-1, *[1] * (p.ndim - 1))
        update(optimizer)
    return model


@equal(found="LS203")
def clip_by_history(team):
    """AutoClip."""
    model, optimizer, loader = prepared(team)
    history = []
    for batch in loader:
        gradients(team, model, batch)
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters())).item()
        history.append(norm)
        team.clip_grad_norm_(model.parameters(), sorted(history)[len(history) // 4])
        update(optimizer)
    return model, history


@equal(plain=True)
def parameter_hooks(team):
    """Parameter hooks that clamp gradients."""
    model, optimizer, loader = team.prepare(*make())
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))
    train(team, model, optimizer, loader)
    return model


@equal()
def masked_by_hooks(team):
    """Hooks that keep weights at zero."""
    model = mlp()
    masks = {name: (torch.rand_like(p) < 0.5).float() for name, p in model.named_parameters() if p.ndim == 2}
    model, optimizer, loader = prepared(team, model)
    for name, mask in masks.items():
        model.get_parameter(name).data *= mask
        model.get_parameter(name).register_hook(lambda gradient, mask=mask: gradient * mask)
    train(team, model, optimizer, loader)
    return model


@equal()
def gradient_noise(team):
    """Decaying gradient noise."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        gradients(team, model, batch)
        for p in model.parameters():
            p.grad += torch.randn_like(p) * (0.01 / (1 + team.step) ** 0.55) ** 0.5
        update(optimizer)
    return model


@equal(found="LS203")
def top_k_gradient(team):
    """Top-k gradients."""
    model, optimizer, loader = prepared(team)
    residue = [torch.zeros_like(p) for p in model.parameters()]
    for batch in loader:
        gradients(team, model, batch)
        for p, rest in zip(model.parameters(), residue, strict=True):
            total = p.grad + rest
            limit = total.abs().flatten().topk(max(1, total.numel() // 4)).values[-1]
            p.grad = torch.where(total.abs() >= limit, total, 0.0)
            rest.copy_(total - p.grad)
        update(optimizer)
    return model, residue


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


@equal(found="LS202")
def accumulated_to_the_end(team):
    """Accumulation by hand, partial end."""
    model, optimizer, loader = prepared(team)
    losses = []
    for number, batch in enumerate(loader, 1):
        gradients(team, model, batch)
        losses.append(batch["loss"])
        if number % 3 == 0 or number == len(loader):
            for p in model.parameters():
                p.grad /= (number - 1) % 3 + 1
            update(optimizer)
    return model, losses


@equal(accumulate=3)
def accumulate_setting(team):
    """`accumulate=3`, partial end."""
    model, optimizer, loader = prepared(team, mlp(), data=dataset(42))
    losses = []
    for batch in loader:
        step(team, model, optimizer, batch)
        losses.append((batch["loss"], batch.num_samples))
    return model, losses, len(loader), team.step


@equal()
def own_grad_scaler(team):
    """The script's own GradScaler."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = dataset()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    model, optimizer, scaler, loader = team.prepare(model, optimizer, scaler, shuffled(data))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(scaler.scale(functional.cross_entropy(model(inputs), targets)))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model, optimizer, scaler.get_scale()


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


@refused("a gradient was used inside batch.shards")
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
