"""Optimizers."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from topics.promises import equal, refused
from topics.shared import dataset, gradients, make, mlp, prepared, shuffled, step, train, trained, update


@equal(plain=True)
def sgd(team):
    """SGD."""
    return trained(team)


OPTIMIZERS = [
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    partial(torch.optim.SGD, lr=0.01, maximize=True),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    partial(torch.optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.01),
    partial(torch.optim.Adam, lr=0.01, fused=True),
    partial(torch.optim.AdamW, lr=0.01),
    partial(torch.optim.Adamax, lr=0.01),
    partial(torch.optim.NAdam, lr=0.01),
    partial(torch.optim.RAdam, lr=0.01),
    partial(torch.optim.RMSprop, lr=0.01, centered=True, momentum=0.9),
    partial(torch.optim.Rprop, lr=0.01),
    partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.01),
    torch.optim.Adadelta,
    partial(torch.optim.ASGD, lr=0.1, t0=1),
    partial(torch.optim.Adafactor, lr=0.05),
]


@equal(plain=True)
def each_optimizer(team):
    """Every optimizer of `torch.optim`, also with `foreach`, `fused` and `maximize`."""
    return [trained(team, optimizer) for optimizer in OPTIMIZERS]


@refused(code="sparse-gradient")
def sparse_adam(team):
    """SparseAdam on sparse gradients."""
    model = nn.Sequential(nn.EmbeddingBag(20, 6, sparse=True), nn.Linear(6, 3))
    optimizers = [torch.optim.SparseAdam(model[0].parameters()), torch.optim.SGD(model[1].parameters(), lr=0.1)]
    model, *optimizers, loader = team.prepare(
        model, *optimizers, shuffled(TensorDataset(torch.randint(0, 20, (22, 5)), torch.randint(0, 3, (22,))))
    )
    for batch in loader:
        gradients(team, model, batch)
        for optimizer in optimizers:
            update(optimizer)


@equal()
def parameter_groups(team):
    """Parameter groups."""
    model = mlp()
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "lr": 0.05}]
    model, optimizer, loader = prepared(team, model, torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0))
    train(team, model, optimizer, loader)
    return model, optimizer


@equal()
def two_optimizers(team):
    """Two optimizers in turn."""
    model = mlp()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model[2].parameters(), lr=0.01)
    model, first, second, loader = team.prepare(model, first, second, shuffled(dataset()))
    for batch in loader:
        gradients(team, model, batch)
        update(first)
        if team.step % 2 == 0:
            update(second)
    return model, first, second


def make_linear():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    return model, DataLoader(dataset(), 10)


@equal(plain=True)
def update_by_hand(team):
    """Weights updated by hand."""
    model, loader = team.prepare(*make_linear())
    for batch in loader:
        gradients(team, model, batch)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        model.zero_grad()
    return model


@equal(found="LS203")
def update_through_data(team):
    """Weights written through `p.data`."""
    model = mlp()
    model, loader = team.prepare(model, shuffled(dataset()))
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for batch in loader:
        gradients(team, model, batch)
        for name, p in model.named_parameters():
            velocity[name].mul_(0.9).add_(p.grad)
            p.data -= 0.1 * velocity[name]
            p.grad = None
    return model, velocity


@equal(found="LS201")
def optimizer_exchanged(team):
    """An optimizer exchanged mid-run."""
    model = mlp()
    model, optimizer, loader = prepared(team, model, torch.optim.Adam(model.parameters(), lr=0.01))
    for batch in loader:
        if team.step == 3:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(team, model, optimizer, batch)
    return model, optimizer


@equal()
def optimizer_not_prepared(team):
    """An unprepared optimizer."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, loader = team.prepare(model, shuffled(dataset()))
    train(team, model, optimizer, loader)
    return model, optimizer


@equal()
def add_param_group(team):
    """`add_param_group` mid-run."""
    model = mlp()
    model[0].requires_grad_(False)
    model, optimizer, loader = prepared(team, model, torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9))
    for batch in loader:
        if team.step == 3:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
        step(team, model, optimizer, batch)
    return model, optimizer


@equal()
def optimizer_hooks(team):
    """Optimizer hooks."""
    model, optimizer, loader = prepared(team)
    norms = []

    def clip(optimizer, args, kwargs):
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))

    def clamp(optimizer, args, kwargs):
        for p in model.parameters():
            p.data.clamp_(-0.4, 0.4)

    optimizer.register_step_pre_hook(clip)
    optimizer.register_step_post_hook(clamp)
    train(team, model, optimizer, loader)
    return model, optimizer, norms


@equal(plain=True)
def zero_at_the_start(team):
    """`zero_grad()` at the start."""
    model, optimizer, loader = team.prepare(*make(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)))
    for batch in loader:
        optimizer.zero_grad()
        gradients(team, model, batch)
        optimizer.step()
    return model, optimizer


@equal(plain=True)
def never_cleared(team):
    """Gradients never cleared."""
    model, optimizer, loader = team.prepare(*make())
    for batch in loader:
        gradients(team, model, batch)
        optimizer.step()
    return model, optimizer


@refused(code="inside-shards")
def optimizer_in_backward(team):
    """An optimizer step in backward hooks."""
    model = mlp()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    model, *_, loader = team.prepare(model, *optimizers.values(), DataLoader(dataset(), 10))

    def step_now(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_now)
    for batch in loader:
        gradients(team, model, batch)


@equal(plain=True)
def sam(team):
    """SAM."""
    model, optimizer, loader = team.prepare(*make())
    for batch in loader:
        gradients(team, model, batch)
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        moves = [0.05 * p.grad / norm for p in model.parameters()]
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p += move
        optimizer.zero_grad()
        gradients(team, model, batch)
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p -= move
        update(optimizer)
    return model, optimizer


@equal()
def evolution_strategy(team):
    """An evolution strategy."""
    model = mlp()
    model, loader = team.prepare(model, shuffled(dataset()))
    losses = []
    for batch in loader:
        noises, scores = [], []
        for _ in range(3):
            noise = [0.1 * torch.randn_like(p) for p in model.parameters()]
            for p, n in zip(model.parameters(), noise, strict=True):
                p.data += n
            for inputs, targets in batch.shards:
                with torch.no_grad():
                    batch.add(loss=functional.cross_entropy(model(inputs), targets))
            for p, n in zip(model.parameters(), noise, strict=True):
                p.data -= n
            noises.append(noise)
            scores.append(batch["loss"])
        best = noises[scores.index(min(scores))]
        for p, n in zip(model.parameters(), best, strict=True):
            p.data += 0.5 * n
        losses.append(scores)
    return model, losses
