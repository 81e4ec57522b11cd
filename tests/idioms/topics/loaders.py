"""Loaders and their batches."""

import itertools
import queue
import threading
import time

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from topics.promises import differs, equal, refused
from topics.shared import dataset, gradients, mlp, prepared, shuffled, step, train, update


@equal()
def zipped_loaders(team):
    """Two loaders zipped."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = dataset()
    labelled = DataLoader(data, 10, shuffle=True, drop_last=True)
    unlabelled = DataLoader(torch.randn(50, 6), 20, shuffle=True, drop_last=True)
    model, optimizer, labelled, unlabelled = team.prepare(model, optimizer, labelled, unlabelled)
    for batch, other in zip(labelled, unlabelled, strict=True):
        for (inputs, targets), more in zip(batch.shards, other.shards, strict=True):
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss + 0.1 * model(more).softmax(dim=1).square().sum(dim=1).mean())
            batch.add(loss=loss)
        update(optimizer)
    return model, labelled.averages


@refused(code="shards-uneven")
def zipped_shards_that_do_not_match(team):
    """`zip(a.shards, b.shards)`, unequal numbers."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = dataset(12)
    labelled, unlabelled = DataLoader(data, 10), DataLoader(torch.randn(30, 6), 20)
    model, optimizer, labelled, unlabelled = team.prepare(model, optimizer, labelled, unlabelled)
    for batch, other in zip(labelled, unlabelled, strict=True):
        for (inputs, targets), more in zip(batch.shards, other.shards, strict=True):
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss + 0.1 * model(more).softmax(dim=1).square().sum(dim=1).mean())
        update(optimizer)


@equal()
def two_loaders_in_turn(team):
    """Two loaders, a phase each."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = dataset()
    second = dataset()
    model, optimizer, first, second = team.prepare(model, optimizer, shuffled(first), shuffled(second))
    losses = []
    for batch, other in zip(first, second, strict=True):
        gradients(team, model, batch)
        for inputs, targets in other.shards:
            loss = functional.cross_entropy(model(inputs + 1.0), targets)
            team.backward(loss)
            other.add(loss=loss)
        update(optimizer)
        losses.append((batch["loss"], other["loss"]))
    return model, losses


@equal()
def shorter_loader_started_anew(team):
    """A shorter second loader, restarted."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = dataset()
    short = dataset(12)
    model, optimizer, loader, short = team.prepare(model, optimizer, shuffled(data), shuffled(short))
    others = iter(short)
    for batch in loader:
        other = next(others, None)
        if other is None:
            others = iter(short)
            other = next(others)
        gradients(team, model, batch)
        for inputs, targets in other.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
        update(optimizer)
    return model


@equal()
def nested_loaders(team):
    """A second loader inside each step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = dataset()
    support = dataset(12)
    model, optimizer, loader, support = team.prepare(model, optimizer, shuffled(data), DataLoader(support, 10))
    for batch in loader:
        gradients(team, model, batch)
        for other in support:
            for inputs, targets in other.shards:
                team.backward(functional.cross_entropy(model(inputs), targets))
        update(optimizer)
    return model


@differs(
    "Which batch a shard gets follows from the shards before it on this process: prepare that loader too "
    "(`zip(first, second)`), or call `next()` outside.",
    found="LS111",
)
def next_of_a_plain_loader_inside(team):
    """`next()` of an unprepared loader inside."""
    model = mlp()
    data = dataset()
    unlabelled = iter(DataLoader(torch.randn(60, 6), 4))
    model, optimizer, loader = prepared(team, model, data=data)
    for batch in loader:
        for inputs, targets in batch.shards:
            certain = model(next(unlabelled)).softmax(dim=1).square().sum(dim=1).mean()
            team.backward(functional.cross_entropy(model(inputs), targets) - 0.1 * certain)
        update(optimizer)
    return model


@equal(found="LS207")
def islice(team):
    """`itertools.islice`."""
    model, optimizer, loader = prepared(team)
    for _ in team.epochs(2):
        for batch in itertools.islice(loader, 2):
            step(team, model, optimizer, batch)
    return model, team.step


@equal()
def taken(team):
    """`loader.take(n)`."""
    model, optimizer, loader = prepared(team)
    for _ in team.epochs(3):
        for batch in loader.take(2):
            step(team, model, optimizer, batch)
    return model, team.step


@equal()
def by_next(team):
    """`next()`."""
    model, optimizer, loader = prepared(team)
    batches = iter(loader)
    losses = []
    while team.step < 7:
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        step(team, model, optimizer, batch)
        losses.append(batch["loss"])
    return model, losses, team.step


def forever(loader):
    while True:
        yield from loader


@equal(found="LS202")
def endless_generator(team):
    """An endless generator."""
    model, optimizer, loader = prepared(team)
    for number, batch in enumerate(forever(loader), 1):
        step(team, model, optimizer, batch)
        if number == 7:
            break
    return model, team.step


@refused(code="step-over", found="LS202")
def itertools_cycle(team):
    """`itertools.cycle(loader)`."""
    model, optimizer, loader = prepared(team)
    for number, batch in enumerate(itertools.cycle(loader), 1):
        step(team, model, optimizer, batch)
        if number == 7:
            break


@refused(code="step-over")
def next_ahead(team):
    """`next()` one batch ahead."""
    model, optimizer, loader = prepared(team)
    batches = iter(loader)
    following = next(batches)
    while following is not None:
        batch, following = following, next(batches, None)
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
        update(optimizer)


@refused(code="step-over", found="LS203")
def prefetched_by_a_thread(team):
    """A background thread that takes batches ahead."""
    model, optimizer, loader = prepared(team)
    ahead = queue.Queue(2)

    def fetch():
        for batch in loader:
            ahead.put(batch)
        ahead.put(None)

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    time.sleep(0.2)
    while (batch := ahead.get()) is not None:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
        update(optimizer)


@refused(code="step-over")
def batches_kept(team):
    """`list(loader)`."""
    model, optimizer, loader = prepared(team)
    for batch in list(loader):
        step(team, model, optimizer, batch)


@refused(code="step-over")
def batch_of_a_lost_iterator(team):
    """`next(iter(loader))`, iterator not kept."""
    model, optimizer, loader = prepared(team)
    batch = next(iter(loader))
    for inputs, targets in batch.shards:
        loss = functional.cross_entropy(model(inputs), targets)
        team.backward(loss)
        batch.add(loss=loss)
    update(optimizer)


@equal()
def loader_of_each_epoch(team):
    """A new loader each epoch."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = dataset()
    model, optimizer = team.prepare(model, optimizer)
    for epoch in range(2):
        loader = team.prepare(DataLoader(data, 10 + 5 * epoch, shuffle=True))
        train(team, model, optimizer, loader)
    return model, team.step
