"""Scripts that look at what the team does. Each function is one rank's script."""

import io
import json
import os
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def numbers(length):
    """Sample i is the number i."""
    return TensorDataset(torch.arange(float(length)).unsqueeze(1))


def linear(value=1.0):
    """A model of one weight: its gradient for inputs x and the loss ``model(x).mean()`` is the mean of x."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def watch_steps(length, batch_size, epochs, drop_last=False):
    """What each body saw of the position, and what there was between and after the loops."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(length), batch_size, drop_last=drop_last))
        before, bodies, between = (team.step, team.epoch, team.ends_step), [], []
        for epoch in team.epochs(epochs):
            for (inputs,) in loader:
                team.backward(model(inputs).mean())
                bodies.append((epoch, team.epoch, team.step, team.ends_step, inputs.flatten().tolist()))
            between.append((team.step, team.ends_step))
        return {"before": before, "bodies": bodies, "between": between, "len": len(loader), "after": team.step}


def gradients_between(zero_at):
    """The gradient at every point of the body, and the weight after every step."""
    with lockstep.join() as team:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(numbers(8), 4))
        seen, weights = [], []
        for (inputs,) in loader:
            if zero_at == "first":
                optimizer.zero_grad()
            loss = model(inputs).mean()
            if zero_at == "middle":
                optimizer.zero_grad()
            team.backward(loss)
            seen.append((team.ends_step, None if model.weight.grad is None else model.weight.grad.item()))
            optimizer.step()
            if zero_at == "last":
                optimizer.zero_grad()
            if zero_at == "model":
                model.zero_grad()
            if team.ends_step:
                weights.append(model.weight.item())
        return seen, weights


SCHEDULES = {
    "step": lambda optimizer: StepLR(optimizer, 3, 0.5),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 6),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.3, total_steps=6),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "sequential": lambda optimizer: SequentialLR(
        optimizer, [LambdaLR(optimizer, lambda step: step + 1), StepLR(optimizer, 1, 0.5)], [2]
    ),
}


def rates_by_step(name, made):
    """The learning rate that each of six steps was taken with, in two epochs of three."""
    with lockstep.join() as team:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, loader = team.prepare(model, DataLoader(numbers(12), 4))
        if made == "before":
            schedule = SCHEDULES[name](optimizer)
            schedule, optimizer = team.prepare(schedule, optimizer)
        else:
            optimizer = team.prepare(optimizer)
            schedule = team.prepare(SCHEDULES[name](optimizer))
        rates = []
        for _ in team.epochs(2):
            for (inputs,) in loader:
                if team.ends_step:
                    rates.append(optimizer.param_groups[0]["lr"])
                team.backward(model(inputs).mean())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        return rates


def plain_rates(name):
    """The same of the plain loop."""
    optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)
    schedule = SCHEDULES[name](optimizer)
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def rates_by_epoch():
    """Two schedules stepped outside of the loop: by epoch, and by a metric that does not improve."""
    with lockstep.join() as team:
        model = linear()
        optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for _ in range(2)]
        by_epoch, by_metric = StepLR(optimizers[0], 1, 0.5), ReduceLROnPlateau(optimizers[1], patience=0, factor=0.1)
        model, *optimizers, by_epoch, by_metric, loader = team.prepare(
            model, *optimizers, by_epoch, by_metric, DataLoader(numbers(8), 4)
        )
        rates = []
        for _ in team.epochs(3):
            rates.append([optimizer.param_groups[0]["lr"] for optimizer in optimizers])
            for (inputs,) in loader:
                team.backward(0 * model(inputs).mean())
                for optimizer in optimizers:
                    optimizer.step()
            by_epoch.step()
            by_metric.step(1.0)
        return rates


def plain_states():
    """State dicts after a step, of prepared and of plain objects: keys, and whether they load into plain objects."""
    with lockstep.join() as team:
        model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.Adam(model.parameters())
        schedule = StepLR(optimizer, 1)
        prepared, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, DataLoader(numbers(16), 8))
        for (inputs,) in loader:
            team.backward(prepared(inputs).square().mean())
            optimizer.step()
            schedule.step()
        saved = io.BytesIO()
        torch.save([prepared.state_dict(), optimizer.state_dict(), schedule.state_dict()], saved)
        saved.seek(0)
        states = torch.load(saved, weights_only=True)
        plain = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
        plain_optimizer = torch.optim.Adam(plain.parameters())
        plain_schedule = StepLR(plain_optimizer, 1)
        assert states[2].keys() == plain_schedule.state_dict().keys()
        for thing, state in zip((plain, plain_optimizer, plain_schedule), states, strict=True):
            thing.load_state_dict(state)
        equal = all(torch.equal(a, b) for a, b in zip(prepared.parameters(), plain.parameters(), strict=True))
        return list(states[0]) == list(plain.state_dict()), equal, plain_schedule.last_epoch


def any_in_the_body(truths):
    """What ``any`` answered in each body. ``truths``: (rank, body) where the condition holds."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(16), 8))
        answers = []
        for body, (inputs,) in enumerate(loader):
            team.backward(model(inputs).mean())
            answers.append((team.step, team.ends_step, team.any((team.rank, body) in truths)))
        return answers, team.any(team.rank == 0), team.any(torch.tensor(False))


def stop_together():
    """Each rank leaves the loop when any rank wants to."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(40), 4))
        for (inputs,) in loader:
            team.backward(model(inputs).mean())
            if team.any(team.rank == team.world_size - 1 and team.step == 3):
                break
        return team.step


def first_and_then(order):
    with lockstep.join() as team:
        with team.main_first():
            if team.is_main:
                time.sleep(0.1)
            with Path(order).open("a") as file:
                file.write(f"{team.rank}\n")
        team.barrier()
        return Path(order).read_text().split()


def fail_first(caught):
    """Rank 0 fails in ``main_first``. What each rank was told."""
    with lockstep.join() as team:
        try:
            with team.main_first():
                raise OSError(f"no download on rank {team.rank}")
        except (OSError, lockstep.LockstepError) as error:
            if not caught:
                raise
            return type(error).__name__, str(error)


def print_from_all():
    with lockstep.join() as team:
        team.print("once", team.rank, sep="-")
        return team.is_main


def log_numbers(length, batch_size, log_every):
    """Log each shard's mean of its numbers, and a value with a weight of its own, in some steps only."""
    with lockstep.join(log_every=log_every) as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(length), batch_size))
        for epoch in team.epochs(2):
            for (inputs,) in loader:
                team.backward(model(inputs).mean())
                team.log(mean=inputs.mean(), odd=1.0 if team.step % 2 else None)
                team.log(weight=float(inputs.sum()), heavy=inputs.mean())
            team.log(epoch=float(epoch))
        run_dir = team.run_dir
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()] if team.is_main else None


def groups_and_threads(times):
    """Join and leave several times; what is left each time."""
    found = []
    for _ in range(times):
        with lockstep.join() as team:
            total = team.all_reduce(torch.ones(())).item()
            directory = team.run_dir
        lost = "open"
        try:
            team.barrier()
        except lockstep.LockstepError as error:
            lost = str(error)
        sockets = [s for s in psutil.Process().net_connections("inet") if s.status == psutil.CONN_LISTEN]
        found.append((total, dist.is_initialized(), lost, len(sockets), str(directory)))
    return found


def train_to_the_end(shards=None, precision="32-true"):
    """A small training with everything in it, over ready batches. The weights, exactly."""
    team = lockstep.join(shards=shards, precision=precision)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = CosineAnnealingLR(optimizer, 12)
    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, ready_batches())
    norms = []
    for _ in team.epochs(2):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            norms.append(team.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}, [float(n) for n in norms if n is not None]


def train_plainly():
    """The same, written by hand for one process."""
    torch.set_num_threads(1)  # as ``crew`` asks of the team: the number of threads changes bits
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = CosineAnnealingLR(optimizer, 12)
    norms = []
    for _ in range(2):
        for inputs, targets in ready_batches():
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}, [float(n) for n in norms]


def ready_batches():
    generator = torch.Generator().manual_seed(5)
    sizes = (16, 16, 16, 8)
    return [(torch.randn(n, 4, generator=generator), torch.randint(0, 2, (n,), generator=generator)) for n in sizes]


def own_rank():
    return int(os.environ["RANK"])
