"""Logging."""

import torch
from torch.nn import functional

from topics.promises import differs, equal
from topics.shared import dataset, mlp, prepared, update


@equal()
def team_log(team):
    """`team.log`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            loss = functional.cross_entropy(logits, targets)
            team.backward(loss)
            batch.add(loss=loss, accuracy=logits.argmax(dim=1) == targets)
        update(optimizer)
        team.log(loss=batch["loss"], accuracy=batch["accuracy"], rate=optimizer.param_groups[0]["lr"])
    return model, loader.averages


@equal()
def several_values(team):
    """Values with separate weights."""
    model, optimizer, loader = prepared(team)
    rows = []
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            team.backward(functional.cross_entropy(logits, targets))
            right = logits.argmax(dim=1) == targets
            for label in range(3):
                mine = targets == label
                batch.add(**{f"recall{label}": right[mine].float().mean()}, weight=mine.sum())
        update(optimizer)
        for inputs, targets in batch.shards:
            with torch.no_grad():
                batch.add(after=functional.cross_entropy(model(inputs), targets))
        rows.append([batch[f"recall{label}"] for label in range(3)] + [batch["after"]])
    return model, rows, loader.averages


@equal()
def confusion_matrix(team):
    """A confusion matrix."""
    model, optimizer, loader = prepared(team)
    total = torch.zeros(3, 3, dtype=torch.long)
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            team.backward(functional.cross_entropy(logits, targets))
            pairs = 3 * targets + logits.argmax(dim=1)
            batch.add(confusion=pairs.bincount(minlength=9).view(3, 3), reduction="sum")
        total += batch["confusion"]
        update(optimizer)
    return model, total


@differs("Equal up to rounding. Use `batch.add`, which adds in shard order. (Integers are exact.)")
def summed_by_all_reduce(team):
    """Losses summed by `team.all_reduce`."""
    model, optimizer, loader = prepared(team, mlp(), data=dataset(82))
    losses = []
    for batch in loader:
        total = torch.zeros(1)
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            total += loss.detach() * len(inputs) / 7
        losses.append(team.all_reduce(total))
        update(optimizer)
    return model, losses
