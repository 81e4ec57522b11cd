"""Losses."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from topics.promises import equal, refused
from topics.shared import make, prepared, update


@equal()
def gradient_penalty(team):
    """A penalty on input gradients."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            inputs.requires_grad_(True)
            loss = functional.cross_entropy(model(inputs), targets)
            [slope] = torch.autograd.grad(loss, inputs, create_graph=True)
            team.backward(loss + 0.1 * slope.square().sum())
        update(optimizer)
    return model


@equal()
def second_order_weights(team):
    """A penalty on weight gradients."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            team.backward(loss + 0.05 * sum(slope.square().sum() for slope in slopes))
        update(optimizer)
    return model


@refused(code="create-graph")
def create_graph_in_backward(team):
    """`team.backward(loss, create_graph=True)`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets), create_graph=True)
        update(optimizer)


@equal()
def maml(team):
    """MAML."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            weights = dict(model.named_parameters())
            inner = functional.cross_entropy(model(inputs), targets)
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            moved = {name: p - 0.1 * slope for (name, p), slope in zip(weights.items(), slopes, strict=True)}
            outer = functional_call(team.unwrap(model), moved, (inputs + 0.1,))
            team.backward(functional.cross_entropy(outer, targets))
        update(optimizer)
    return model


@refused(code="weights-changed-inside")
def weights_perturbed(team):
    """Adversarial weights (AWP), moved in place and back."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            functional_loss = functional.cross_entropy(model(inputs), targets)
            slopes = torch.autograd.grad(functional_loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, slope in zip(model.parameters(), slopes, strict=True):
                    parameter.add_(0.1 * slope)
            team.backward(functional.cross_entropy(model(inputs), targets))
            with torch.no_grad():
                for parameter, slope in zip(model.parameters(), slopes, strict=True):
                    parameter.sub_(0.1 * slope)
        update(optimizer)


@equal()
def weights_perturbed_in_copies(team):
    """Adversarial weights (AWP) by `functional_call`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            weights = dict(model.named_parameters())
            slopes = torch.autograd.grad(functional.cross_entropy(model(inputs), targets), list(weights.values()))
            moved = {name: p + 0.1 * slope for (name, p), slope in zip(weights.items(), slopes, strict=True)}
            outputs = functional_call(team.unwrap(model), moved, (inputs,))
            team.backward(functional.cross_entropy(outputs, targets))
        update(optimizer)
    return model


@equal()
def projected_gradient_descent(team):
    """PGD by `loss.backward(inputs=[delta])`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            delta = torch.zeros_like(inputs, requires_grad=True)
            for _ in range(3):
                functional.cross_entropy(model(inputs + delta), targets).backward(inputs=[delta])
                with torch.no_grad():
                    delta.add_(0.1 * delta.grad.sign()).clamp_(-0.2, 0.2)
                delta.grad = None
            team.backward(functional.cross_entropy(model(inputs + delta.detach()), targets))
        update(optimizer)
    return model


@equal()
def dp_sgd(team):
    """Differential privacy (DP-SGD)."""
    model, optimizer, loader = prepared(team)

    def one_loss(weights, x, y):
        return functional.cross_entropy(functional_call(team.unwrap(model), weights, (x[None],)), y[None])

    per_sample = torch.func.vmap(torch.func.grad(one_loss), in_dims=(None, 0, 0))
    for batch in loader:
        for inputs, targets in batch.shards:
            weights = {name: p.detach() for name, p in model.named_parameters()}
            slopes = per_sample(weights, inputs, targets)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in slopes.values()]).norm(dim=0)
            scale = (0.5 / norms).clamp(max=1.0)
            clipped = {name: torch.tensordot(scale, g, 1) for name, g in slopes.items()}
            team.backward(sum((p * clipped[name]).sum() for name, p in model.named_parameters()), reduction="sum")
        for p in model.parameters():
            p.grad = (p.grad + 0.1 * torch.randn_like(p)) / batch.num_samples
        update(optimizer)
    return model


@equal(plain=True)
def several_backward_calls(team):
    """Two backward calls."""
    model, optimizer, loader = team.prepare(*make())
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            team.backward(functional.cross_entropy(logits, targets), retain_graph=True)
            team.backward(0.1 * logits.square().mean())
        update(optimizer)
    return model


@equal(plain=True)
def summed_loss(team):
    """A summed loss (`reduction="sum"`)."""
    model, optimizer, loader = team.prepare(*make(lambda parameters: torch.optim.SGD(parameters, lr=0.01)))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets, reduction="sum")
            team.backward(loss, reduction="sum")
        update(optimizer)
    return model


@equal()
def summed_loss_by_global_size(team):
    """A loss divided by `batch.num_samples`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets, reduction="sum") / batch.num_samples
            team.backward(loss, reduction="sum")
        update(optimizer)
    return model


@refused(code="loss-is-sum")
def summed_loss_not_said(team):
    """A summed loss without `reduction="sum"`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets, reduction="sum"))
        update(optimizer)


@equal()
def token_weights(team):
    """A mean over tokens."""
    model = nn.Sequential(nn.Embedding(20, 6, padding_idx=0), nn.Linear(6, 20))
    words = torch.randint(1, 20, (22, 5))
    for row, length in enumerate(torch.randint(1, 6, (22,)).tolist()):
        words[row, length:] = 0
    model, optimizer, loader = prepared(team, model, data=words)
    losses = []
    for batch in loader:
        for rows in batch.shards:
            loss = functional.cross_entropy(model(rows).flatten(0, 1), rows.flatten(), ignore_index=0)
            team.backward(loss, weight=(rows != 0).sum())
            batch.add(loss=loss)
        update(optimizer)
        losses.append(batch["loss"])
    return model, losses


@equal()
def functional_call_of_the_prepared_model(team):
    """`functional_call`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            moved = {name: p * 1.1 for name, p in model.named_parameters()}
            team.backward(functional.cross_entropy(functional_call(model, moved, (inputs,)), targets))
        update(optimizer)
    return model
