"""What processes do on behalf of a library that drives training."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._base.errors import LockstepError


def prepared(team, batch_size=7, **options):
    torch.manual_seed(3)
    data = TensorDataset(torch.arange(23.0)[:, None], torch.arange(23))
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return team.prepare(model, optimizer, DataLoader(data, batch_size, shuffle=True, **options))


def share(accumulate=1):
    """For each step, the shards' numbers, samples and losses as the ranks have shared them; then
    the same of an evaluation."""
    team = lockstep.join(accumulate=accumulate)
    model, optimizer, loader = prepared(team)
    steps = []
    for _ in team.epochs(2):
        for batch in loader:
            for inputs, numbers in batch.shards:
                team.backward(model(inputs).mean())
                batch.share({"numbers": numbers, "shard": team.shard, "loss": model(inputs)})
                numbers.zero_()  # of no effect on what was shared
            shared = batch.shared()
            optimizer.step()
            optimizer.zero_grad()
            steps.append([(value["shard"], value["numbers"].tolist(), value["loss"].flatten().tolist()) for value in shared])
            assert batch.shared() == []
    rows = []
    with team.evaluate(model, loader, share=True) as evaluation:
        for batch in evaluation:
            if batch.number == 1:
                continue
            for _, numbers in batch.shards:
                batch.share(numbers)
            [numbers] = batch.shared()
            for inputs, numbers_again in batch.shards:  # a second pass over the batch
                batch.share((numbers_again, model(inputs)))
            assert torch.equal(batch.shared()[-1][0], numbers)
            rows.append((batch.number, numbers.tolist(), batch.shared()[-1][1].flatten().tolist()))
    return steps, rows


def refused():
    """The errors for calls in wrong places, by name."""
    team = lockstep.join()
    model, _, loader = prepared(team)
    errors = {}

    def attempt(name, call, *args):
        try:
            call(*args)
        except LockstepError as error:
            errors[name] = type(error).__name__

    for batch in loader:
        attempt("share outside", batch.share, 1)
        attempt("shard outside", lambda: team.shard)
        for inputs, _ in batch.shards:
            attempt("shared inside", batch.shared)
            team.backward(model(inputs).mean())
        break
    attempt("shard in no loop", lambda: team.shard)
    with team.evaluate(model, loader) as evaluation:
        for batch in evaluation:
            for _ in batch.shards:
                attempt("share without share=True", batch.share, 1)
    with team.evaluate(model, loader, share=True) as evaluation:
        for batch in evaluation:
            attempt("shared before", batch.shared)
            attempt("share outside of an evaluation's", batch.share, 1)
            for _ in batch.shards:
                attempt("shared inside an evaluation's", batch.shared)
            before = batch
            break
    attempt("shared afterwards", before.shared)
    return errors


def overwrite():
    """What is shared of an array, and of a metric's argument, that the script fills again for each
    shard."""
    team = lockstep.join()
    model, optimizer, loader = prepared(team)
    filled, seen = np.zeros(1), []
    for batch in loader:
        for inputs, numbers in batch.shards:
            team.backward(model(inputs).mean())
            filled[:] = numbers[0]
            batch.share({"array": filled, "also": [filled]})
        optimizer.step()
        optimizer.zero_grad()
        seen += [(float(value["array"][0]), float(value["also"][0][0])) for value in batch.shared()]

    class Metric:
        def __init__(self):
            self.seen = []

        def update(self, values):
            self.seen.append(float(values[0]))

    metric = Metric()
    with team.evaluate(model, loader, metrics=[metric]) as evaluation:
        for batch in evaluation:
            for _, numbers in batch.shards:
                filled[:] = numbers[0]
                batch.update(metric, filled)
    return seen, metric.seen


def places():
    """Number and samples of each batch of an evaluation, as they are read within its shards."""
    team = lockstep.join()
    model, _, loader = prepared(team)
    told, outside = [], []
    with team.evaluate(model, loader, share=True) as evaluation:
        for batch in evaluation:
            for inputs, _ in batch.shards:
                batch.share((batch.number, batch.num_samples, len(inputs)))
                batch.add(number=float(batch.number), weight=batch.num_samples)
            told += batch.shared()
            outside.append((batch.number, batch.num_samples))
    return told, outside, evaluation["number"]


def share_side_by_side():
    """What two evaluations share whose loops run side by side."""
    team = lockstep.join()
    model, _, loader = prepared(team)
    told = []
    with team.evaluate(model, loader, share=True) as one, team.evaluate(model, loader.wrapped, share=True) as two:
        for a, b in zip(one, two, strict=True):
            for (_, numbers), (_, others) in zip(a.shards, b.shards, strict=False):
                a.share(numbers.tolist())
                b.share((b.number, others.tolist()))
            told.append((a.shared(), b.shared()))
    return told


def unsendable():
    """The error for sharing what no other process can read."""
    team = lockstep.join()
    _, _, loader = prepared(team)
    for batch in loader:
        for _ in batch.shards:
            try:
                batch.share({"value": a_lambda})
            except lockstep.ConfigError:
                return True
    return False


a_lambda = lambda: 1  # noqa: E731


class Long:
    """A sampler that yields more than its length."""

    def __len__(self):
        return 7

    def __iter__(self):
        return iter(range(9))


def finish():
    """Passes that a loop counts: what finishing each of them does."""
    team = lockstep.join()
    model, optimizer, loader = prepared(team)
    longer = team.prepare(DataLoader(TensorDataset(torch.ones(9, 1)), 7, sampler=Long()))
    loader.finish()  # no pass is under way
    told = []
    for count in (len(loader), 2, len(loader)):
        batches = iter(loader)
        for _ in range(count):
            batch = next(batches)
            for inputs, _ in batch.shards:
                team.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()
        loader.finish()
        loader.finish()
        told.append((team.step, next(batches, None)))
    batches = iter(longer)
    for (inputs,) in next(batches).shards:
        team.backward(model(inputs).mean())
    try:
        longer.finish()
    except lockstep.DataError:
        told.append("longer")
    return told


def differ(compare):
    """The step at which ranks with different clocks are stopped; 0: they are not."""
    team = lockstep.join(checkpoint_every=1)
    model, optimizer, loader = prepared(team)
    team.register("clock", {"now": time.time() + team.rank}, compare=compare)
    try:
        for _ in team.epochs(1):
            for batch in loader:
                for inputs, _ in batch.shards:
                    team.backward(model(inputs).mean())
                optimizer.step()
                optimizer.zero_grad()
    except lockstep.MismatchError:
        return team.step
    return 0


class Clock:
    """State of which each rank has other tensors, and other numbers of them."""

    def __init__(self, rank):
        self.rank, self.loaded = rank, None

    def state_dict(self):
        return {"own": [torch.full((1 + 1000 * self.rank,), self.rank) for _ in range(1 + self.rank)], "rank": self.rank}

    def load_state_dict(self, state):
        self.loaded = [tensor.tolist() for tensor in state["own"]], state["rank"]


def save_different(num_epochs):
    """What a clock is resumed with; and the momentum of the optimizer, of which no part may be
    missing."""
    team = lockstep.join(checkpoint_every=1)
    model, optimizer, loader = prepared(team)
    optimizer.param_groups[0]["momentum"] = 0.9
    clock = team.register("clock", Clock(team.rank), compare=False)
    team.register("another", {"a": torch.ones(3), "b": torch.ones(500)})
    for _ in team.epochs(num_epochs):
        for batch in loader:
            for inputs, _ in batch.shards:
                team.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()
    return clock.loaded, [state["momentum_buffer"].tolist() for state in optimizer.state.values()]


def prepare_again():
    """What prepare returns for each kind of object that is prepared, in all ways; and the names in
    the run's state."""
    team = lockstep.join()
    plain, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    average = torch.optim.swa_utils.AveragedModel(plain)
    data = DataLoader(TensorDataset(torch.ones(4, 2)))
    given = [plain, optimizer, schedule, average, data]
    first = team.prepare(*given)
    again = team.prepare(*given)
    mixed = team.prepare(first[0], other, data, other, first[4])
    assert mixed[1] is mixed[3]
    assert mixed[0] is first[0]
    assert mixed[2] is mixed[4] is first[4]
    stepped = schedule.last_epoch
    optimizer.zero_grad()
    schedule.step()
    return [one is two for one, two in zip(first, again, strict=True)], schedule.last_epoch - stepped


def prepare_otherwise():
    """The error where one rank prepares again, and the other something new."""
    team = lockstep.join()
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    team.prepare(model)
    try:
        team.prepare(model if team.rank == 0 else other)
    except lockstep.MismatchError:
        return True
    return False
