"""Learning rates."""

import torch
from torch.nn import functional

from topics.promises import differs, equal, refused
from topics.shared import dataset, gradients, make, mlp, prepared, shuffled, step, update


@equal()
def plateau_by_training_loss(team):
    """ReduceLROnPlateau by training loss."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.1)
    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, shuffled(dataset()))
    rates = []
    for _ in team.epochs(2):
        for batch in loader:
            step(team, model, optimizer, batch)
            schedule.step(batch["loss"])
            rates.append(schedule.get_last_lr())
    return model, optimizer, rates


@equal(plain=True)
def schedule_of_each_step(team):
    """OneCycleLR."""
    model, optimizer, loader = make(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=len(loader))
    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, loader)
    rates = []
    for batch in loader:
        gradients(team, model, batch)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        rates += schedule.get_last_lr()
    return model, optimizer, rates


@equal()
def schedules_chained(team):
    """An unprepared warm-up."""
    model, optimizer, loader = prepared(team)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    rates = []
    for epoch in team.epochs(3):
        for batch in loader:
            gradients(team, model, batch)
            optimizer.step()
            if epoch == 0:
                warm_up.step()
            optimizer.zero_grad()
            rates.append(optimizer.param_groups[0]["lr"])
        decay.step()
    return model, rates


@equal(plain=True, found="LS201")
def rate_by_counter(team):
    """The learning rate from a counter."""
    model, optimizer, loader = team.prepare(*make())
    counter = 0
    for batch in loader:
        counter += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.3 / counter
        step(team, model, optimizer, batch)
    return model, optimizer, counter


@refused(code="ranks-diverged", alone=False, found="LS102")
def counter_inside(team):
    """A rate that follows samples counted inside."""
    model, optimizer, loader = prepared(team)
    seen = 0
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            seen += len(inputs)
        optimizer.param_groups[0]["lr"] = 1.0 / (10 + seen)
        update(optimizer)
    return model, seen


@refused(code="ranks-diverged", alone=False, found="LS101")
def last_loss_decides(team):
    """A rate that follows the last shard's loss."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        loss = torch.zeros(())
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
        optimizer.param_groups[0]["lr"] = 0.1 * min(2.0, loss.item())
        update(optimizer)
    return model


@differs("The number of processes (or the time, or the host) changes results. Omit it.", found="LS112")
def rank_in_the_answer(team):
    """A learning rate multiplied by the world size."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * team.world_size
        step(team, model, optimizer, batch)
    return model
