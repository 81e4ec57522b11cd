"""Misuse."""

import itertools

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, random_split

from topics.promises import refused
from topics.shared import dataset, gradients, mlp, prepared, shuffled, train, update


@refused(code="batch-used-as-tensors")
def loop_unpacks_batches(team):
    """`for images, labels in loader`."""
    model, optimizer, loader = prepared(team)
    for inputs, targets in loader:
        team.backward(functional.cross_entropy(model(inputs), targets))
        update(optimizer)


@refused(code="batch-used-as-tensors")
def model_of_a_batch(team):
    """`model(batch)`."""
    model = nn.Linear(6, 3)
    model, optimizer, loader = prepared(team, model, loader=DataLoader(torch.randn(22, 6), 10))
    for batch in loader:
        team.backward(model(batch).square().mean())
        update(optimizer)


@refused(code="batch-used-as-tensors")
def batch_indexed(team):
    """`batch[0]`."""
    model, _, loader = prepared(team)
    for batch in loader:
        model(batch[0])


@refused(code="gradient-by-script")
def loss_backward(team):
    """`loss.backward()`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            functional.cross_entropy(model(inputs), targets).backward()
        update(optimizer)


@refused(code="gradient-by-script")
def parameter_swapped(team):
    """`torch.utils.swap_tensors` on a prepared parameter."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        gradients(team, model, batch)
        update(optimizer)
        for p in model.parameters():
            torch.utils.swap_tensors(p, nn.Parameter(2.0 * p.detach()))


@refused(code="gradient-by-script")
def backward_besides(team):
    """`.backward()` in addition to `team.backward`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            (0.1 * model(inputs).square().mean()).backward()
        update(optimizer)


@refused(code="step-without-gradients")
def no_backward(team):
    """No `team.backward`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            batch.add(loss=loss)
        update(optimizer)


@refused(code="step-without-gradients")
def step_before_the_shards(team):
    """`optimizer.step()` before the shards."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        optimizer.step()
        optimizer.zero_grad()
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))


@refused(code="outside-shards")
def backward_outside(team):
    """`team.backward` outside."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
        team.backward(sum(p.square().sum() for p in model.parameters()))
        update(optimizer)


@refused(code="inside-shards")
def step_inside(team):
    """`optimizer.step()` inside."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            optimizer.step()
        optimizer.zero_grad()


@refused(code="inside-shards")
def zero_inside(team):
    """`optimizer.zero_grad()` inside."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            optimizer.zero_grad()
            team.backward(functional.cross_entropy(model(inputs), targets))
        optimizer.step()


@refused(code="inside-shards")
def zipped_with_shards_last(team):
    """`zip(fakes, batch.shards)`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        fakes = torch.randn(1, 6)
        for fake, (inputs, targets) in zip(fakes, batch.shards, strict=False):
            team.backward(functional.cross_entropy(model(inputs + fake), targets))
        update(optimizer)


@refused(code="options-changed-inside")
def schedule_inside(team):
    """`schedule.step()` inside."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = dataset()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, DataLoader(data, 10))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            schedule.step()
        update(optimizer)


@refused(code="inside-shards")
def scaler_inside(team):
    """`scaler.step(optimizer)` inside."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = dataset()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model, optimizer, scaler, loader = team.prepare(model, optimizer, scaler, DataLoader(data, 10))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(scaler.scale(functional.cross_entropy(model(inputs), targets)))
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def inside(team, act):
    """A step in which each shard does what belongs outside."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            act(model, loss)
        update(optimizer)


@refused(code="inside-shards")
def team_clip_inside(team):
    """`team.clip_grad_norm_` inside."""
    inside(team, lambda model, loss: team.clip_grad_norm_(model.parameters(), 1.0))


@refused(code="inside-shards")
def break_inside(team):
    """`break` out of `batch.shards`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            break
        update(optimizer)


@refused(code="inside-shards")
def all_reduce_inside(team):
    """`team.all_reduce` inside."""
    inside(team, lambda model, loss: team.all_reduce(loss, "mean"))


@refused(code="collective-inside-shards")
def raw_all_reduce_inside(team):
    """`torch.distributed.all_reduce` inside."""
    inside(team, lambda model, loss: distributed.all_reduce(loss.detach().clone()))


@refused(code="collective-inside-evaluation-shards")
def raw_all_reduce_in_evaluation(team):
    """`torch.distributed.all_reduce` in an evaluation's shards."""
    model, data = mlp(), dataset()
    model, optimizer, loader = prepared(team, model, data=data)
    train(team, model, optimizer, loader)
    with team.evaluate(model, DataLoader(data, 3)) as evaluation:
        for inputs, targets in evaluation.shards:
            distributed.all_reduce(functional.cross_entropy(model(inputs), targets))


@refused(code="inside-shards")
def evaluate_inside(team):
    """`team.evaluate` inside."""
    model, data = mlp(), dataset()
    model, optimizer, loader = prepared(team, model, data=data)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            with team.evaluate(model, DataLoader(data, 8)) as evaluation:
                for batch in evaluation:
                    for x, y in batch.shards:
                        batch.add(loss=functional.cross_entropy(model(x), y))
        update(optimizer)


@refused(code="batch-used-as-tensors")
def evaluation_unpacked(team):
    """`for x, y in evaluation`."""
    model, data = mlp(), dataset()
    model, optimizer, loader = prepared(team, model, data=data)
    train(team, model, optimizer, loader)
    with team.evaluate(model, DataLoader(data, 3)) as evaluation:
        for inputs, targets in evaluation:
            functional.cross_entropy(model(inputs), targets)


@refused(code="inside-shards")
def value_read_inside(team):
    """`batch["loss"]` read inside."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
            if batch["loss"] > 2.0:
                print("high")
        update(optimizer)


@refused(code="value-not-added")
def value_never_added(team):
    """`batch["accuracy"]` never added."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        gradients(team, model, batch)
        team.log(accuracy=batch["accuracy"])
        update(optimizer)


@refused(code="tensor-without-reduction")
def vector_not_declared(team):
    """A vector added without `reduction`."""
    model = nn.Linear(6, 5)
    model, optimizer, loader = prepared(team, model, data=TensorDataset(torch.randn(22, 6), torch.randint(0, 5, (22,))))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            batch.add(counts=targets.bincount(minlength=5))
        update(optimizer)


@refused(code="outside-shards", found="LS101")
def value_added_outside(team):
    """`batch.add` outside."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
        batch.add(loss=loss)
        update(optimizer)


@refused(code="inside-shards")
def nested_shards(team):
    """Nested `batch.shards`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for _ in batch.shards:
            for inputs, targets in batch.shards:
                team.backward(functional.cross_entropy(model(inputs), targets))
        update(optimizer)


@refused(code="inside-shards")
def next_batch_inside(team):
    """The next batch taken inside."""
    model, optimizer, loader = prepared(team)
    batches = iter(loader)
    for batch in batches:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            next(batches)
        update(optimizer)


@refused(code="loss-not-scalar")
def loss_not_a_scalar(team):
    """A loss per sample."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets, reduction="none").expand(len(inputs) + 1, -1))
        update(optimizer)


@refused(code="loss-nan")
def loss_not_a_number(team):
    """A NaN loss."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets) * float("nan"))
        update(optimizer)


@refused(code="optimizer-of-other-model")
def model_not_prepared(team):
    """An optimizer of an unprepared model."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer, loader = team.prepare(optimizer, DataLoader(dataset(), 10))
    train(team, model, optimizer, loader)


@refused(code="gradient-of-unprepared")
def model_forgotten(team):
    """A second model with an optimizer, both unprepared."""
    model = mlp()
    data = dataset()
    head = nn.Linear(3, 3)
    for_head = torch.optim.Adam(head.parameters(), lr=0.1)
    model, optimizer, loader = prepared(team, model, data=data)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(head(model(inputs)), targets))
        update(optimizer)
        update(for_head)


@refused(code="gradient-of-unprepared", found="LS203")
def tensor_forgotten(team):
    """A learned tensor of no model, updated by hand."""
    model = mlp()
    data = dataset()
    scale = torch.ones(3, requires_grad=True)
    model, optimizer, loader = prepared(team, model, data=data)
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(scale * model(inputs), targets))
        update(optimizer)
        with torch.no_grad():
            scale -= 0.1 * scale.grad
        scale.grad = None


@refused(code="loader-already-split")
def distributed_sampler(team):
    """A DistributedSampler."""
    model = mlp()
    data = dataset()
    sampler = torch.utils.data.DistributedSampler(data, team.world_size, team.rank)
    model, optimizer, loader = prepared(team, model, loader=DataLoader(data, 10, sampler=sampler))
    train(team, model, optimizer, loader)


@refused(code="model-wrapped")
def wrapped_already(team):
    """A model already in DataParallel."""
    model, optimizer, loader = prepared(team, nn.DataParallel(nn.Linear(6, 3)))
    train(team, model, optimizer, loader)


@refused(code="outside-shards")
def shards_listed(team):
    """`list(batch.shards)`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        parts = list(batch.shards)
        for inputs, targets in parts:
            team.backward(functional.cross_entropy(model(inputs), targets))
        update(optimizer)


@refused(code="options-changed-inside")
def rate_inside(team):
    """The learning rate set inside."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            optimizer.param_groups[0]["lr"] = 0.05 * loss.item()
        update(optimizer)


@refused(code="inside-shards")
def unprepared_step_inside(team):
    """An unprepared `optimizer.step()` inside."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, loader = team.prepare(model, shuffled(dataset()))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()


@refused(code="ranks-differ", alone=False)
def split_before_join(join):
    """Unseeded `random_split` before `join`."""
    inputs = torch.arange(240.0).view(40, 6) / 100
    training, _ = random_split(TensorDataset(inputs, torch.arange(40) % 3), [30, 10])
    team = join()
    model = mlp()
    model, optimizer, loader = prepared(team, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), training)
    train(team, model, optimizer, loader)
    return model, optimizer


@refused(code="ranks-differ", alone=False)
def data_drawn_before_join(join):
    """Random data drawn before `join`."""
    data = dataset()
    team = join()
    model = mlp()
    model, optimizer, loader = prepared(team, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data)
    train(team, model, optimizer, loader)
    return model, optimizer


class Samples(IterableDataset):
    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        samples = ((torch.full((6,), number / 100), number % 3) for number in range(20 * self.world_size))
        return itertools.islice(samples, self.rank, None, self.world_size)


@refused(code="ranks-differ", alone=False, found="LS112")
def stream_split_by_rank(team):
    """A stream split by rank."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Samples(team.rank, team.world_size), 10))
    train(team, model, optimizer, loader)
    return model, optimizer


@refused(code="ranks-differ", alone=False)
def ready_batches_split_by_rank(team):
    """Ready-made batches split by rank."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [(torch.randn(10, 6), torch.randint(0, 3, (10,))) for _ in range(3 * team.world_size)]
    model, optimizer, loader = team.prepare(model, optimizer, batches[team.rank :: team.world_size])
    train(team, model, optimizer, loader)
    return model, optimizer
