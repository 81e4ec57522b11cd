"""Training scripts, each a function of a team, that have state of every kind and keep in it what
they have seen: see ``whole_state``.

With 18 samples, a global batch is 6, and so an epoch has 3 steps. All draw augmentation and dropout
masks from the run's streams."""

import itertools
import random

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

FEATURES, BATCH = 3, 6


def sample(index):
    features = torch.arange(1.0, FEATURES + 1) * (index + 1) / 10
    return features + 0.1 * torch.randn(FEATURES) + 0.1 * random.random(), torch.tensor(index % 2)


class Samples(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return sample(index)


class Bookmarked(IterableDataset):
    """A stream whose state is its position."""

    position = 0

    def __iter__(self):
        while self.position < 18:
            self.position += 1
            yield sample(self.position - 1)
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def samples(length=18, **options):
    return DataLoader(Samples(length), **{"batch_size": BATCH, "shuffle": True, **options})


def network():
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))


def begin(team, loader=None, optimizer=torch.optim.SGD, **options):
    model = network()
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else options
    return team.prepare(model, optimizer(model.parameters(), lr=0.1, **options), samples() if loader is None else loader)


def learn(team, model, optimizer, batch):
    """A step. Returns its loss."""
    for features, labels in batch.shards:
        loss = nn.functional.cross_entropy(model(features), labels)
        team.backward(loss)
        batch.add(loss=loss)
    optimizer.step()
    optimizer.zero_grad()
    team.log(loss=batch["loss"])
    return batch["loss"]


def evaluated(team, model, loader):
    with team.evaluate(model, loader) as evaluation:
        for features, labels in evaluation.shards:
            evaluation.add(loss=nn.functional.cross_entropy(model(features), labels, reduction="none"))
    team.log(of_evaluation=evaluation["loss"])
    return evaluation["loss"]


def drawn():
    """A number of each stream of the process."""
    return [torch.rand(()).item(), random.random(), float(np.random.rand())]


def schedules_averages_and_random_numbers(team, num_epochs=2):
    model, optimizer, loader = begin(team, optimizer=torch.optim.AdamW)
    warm_up = SequentialLR(optimizer, [LinearLR(optimizer, 0.25, total_iters=2), StepLR(optimizer, 2, 0.5)], [2])
    average = AveragedModel(team.unwrap(model), multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    warm_up, average = team.prepare(warm_up, average)
    seen = team.register("seen", [])
    for _ in team.epochs(num_epochs):
        seen.append(drawn())
        for batch in loader:
            seen.append(learn(team, model, optimizer, batch))
            warm_up.step()
            average.update_parameters(team.unwrap(model))
            seen.append([*drawn(), warm_up.get_last_lr()])
        seen.append([*drawn(), loader.averages["loss"]])
        team.log(average=loader.averages["loss"])
    seen.append(drawn())
    team.log(last=seen[-1][0])


class Counter:
    """An object of the script with a state."""

    def __init__(self):
        self.count, self.last = 0, torch.zeros(2, dtype=torch.bfloat16)

    def state_dict(self):
        return {"count": self.count, "last": self.last}

    def load_state_dict(self, state):
        self.count, self.last = state["count"], state["last"]


def registered_state(team, num_epochs=2):
    model, optimizer, loader = begin(team)
    mean = team.register("mean", torch.zeros(3))
    table = team.register("table", {"steps": 0, 7: (1, None), "tensor": torch.zeros(2), "names": {"a": float("nan")}})
    torch_numbers = team.register("torch", torch.Generator().manual_seed(1))
    numpy_numbers = team.register("numpy", np.random.default_rng(2))
    plain_numbers = team.register("python", random.Random(3))
    counter, hidden = team.register("counter", Counter()), team.per_shard("hidden", torch.zeros(2))
    clock = team.register("clock", torch.zeros(1), compare=False)
    state = team.state(count=0, best=None, latest=torch.zeros(2))
    for _ in team.epochs(num_epochs):
        for batch in loader:
            for features, labels in batch.shards:
                hidden.value = hidden.value + features.mean(0)[:2]
                team.backward(nn.functional.cross_entropy(model(features), labels))
            optimizer.step()
            optimizer.zero_grad()
            mean += torch.rand(3, generator=torch_numbers)
            table["steps"] += 1
            table["tensor"] = table["tensor"] * 0.5 + numpy_numbers.random()
            table[team.step] = {"drawn": plain_numbers.random()}
            counter.count += team.step
            counter.last = counter.last + mean[:2]
            clock[0] += 0.5 * (team.rank + 1)
            state.count += batch.num_samples
            state.best, state.latest = mean.sum().item(), state.latest + 1
        hidden.reset()
        table["names"]["b"] = [team.step]


def the_best_weights_and_early_stopping(team, num_epochs=5):
    """The second epoch is the best: a run that has forgotten it takes a worse one for the best, as
    one does that repeats what comes before the epochs."""
    model, optimizer, loader = begin(team, samples(12))
    seen = team.register("seen", [])
    team.best(4.0, mode="min")
    for epoch in team.epochs(num_epochs):
        for batch in loader:
            learn(team, model, optimizer, batch)
        team.best([3.0, 1.0, 2.0, 1.5, 2.5][epoch], mode="min")
        seen.append((team.best_metric, team.best_epoch))
        assert seen[-1] == ((3.0, 0) if epoch == 0 else (1.0, 1))
        if epoch - team.best_epoch == 2:
            break


def an_evaluation_that_decides(team, num_epochs=3):
    model, optimizer, loader = begin(team, samples(12))
    validation, plateau = (
        samples(7, shuffle=False),
        team.prepare(ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0)),
    )
    seen = team.register("seen", [])
    for _ in team.epochs(num_epochs):
        model.train()
        for batch in loader:
            learn(team, model, optimizer, batch)
        loss = evaluated(team, model, validation)
        seen.append((team.best(-loss), team.best_metric))
        plateau.step(loss)
    seen.append((team.epoch, evaluated(team, model, samples(7)), evaluated(team, model, validation)))


def passes_counted_by_the_script(team, num_epochs=2):
    """Without ``team.epochs``, so that a resumed run repeats the code between passes."""
    model, optimizer, loader = begin(team)
    schedule, seen = team.prepare(StepLR(optimizer, 1, 0.5)), team.register("seen", [])
    average = team.prepare(AveragedModel(team.unwrap(model)))
    for _ in range(num_epochs):
        for batch in loader:
            seen.append(learn(team, model, optimizer, batch))
        schedule.step()
        average.update_parameters(team.unwrap(model))
        seen.append(drawn())
        evaluated(team, model, samples(7, shuffle=False))
        team.log(rate=optimizer.param_groups[0]["lr"])


def a_tail_after_the_last_epoch(team, num_epochs=2):
    model, optimizer, loader = begin(team)
    seen = team.register("seen", [])
    for _ in team.epochs(num_epochs):
        for batch in loader:
            learn(team, model, optimizer, batch)
    with torch.no_grad():
        for parameter in team.unwrap(model).parameters():
            parameter.mul_(0.5)
    seen.append(["tail", *drawn()])


def a_tail_of_registered_state(team, num_epochs=2):
    model, optimizer, loader = begin(team)
    table = team.register("table", {"done": 0})
    for _ in team.epochs(num_epochs):
        for batch in loader:
            learn(team, model, optimizer, batch)
    table["done"] += 1


def a_second_loader_that_goes_round_by_itself(team, num_epochs=2):
    """Its pass of two steps ends within a pass of three, and is open between two of them."""

    def endless(loader):
        while True:
            yield from loader

    model, optimizer, loader = begin(team)
    more = team.prepare(samples(12, generator=torch.Generator().manual_seed(8)))
    seen, others = team.register("seen", []), endless(more)
    for _ in team.epochs(num_epochs):
        for batch in loader:
            other = next(others)
            for (features, labels), (unlabelled, _) in zip(batch.shards, other.shards, strict=True):
                certain = model(unlabelled).softmax(1).square().sum(1).mean()
                team.backward(nn.functional.cross_entropy(model(features), labels) - 0.1 * certain)
                other.add(certain=certain)
            optimizer.step()
            optimizer.zero_grad()
            seen.append(other["certain"])


def a_second_loader_in_passes_counted_by_the_script(team, num_epochs=2):
    """Its pass of five steps is open when the first of three ends."""
    model, optimizer, loader = begin(team)
    more = team.prepare(samples(30))
    others = None
    for _ in range(num_epochs):
        for batch in loader:
            others = others or iter(more)
            other = next(others, None)
            if other is None:
                others = None
            else:
                learn(team, model, optimizer, other)
            learn(team, model, optimizer, batch)


def a_second_loader_that_is_made_again(team, num_epochs=2):
    """It is longer than the pass, and made again in each."""
    model, optimizer, loader = begin(team)
    more, seen = team.prepare(samples(30)), team.register("seen", [])
    for _ in team.epochs(num_epochs):
        for batch, other in zip(loader, more, strict=False):
            seen.append(learn(team, model, optimizer, batch) + learn(team, model, optimizer, other))
        seen.append(drawn())


def two_passes_an_epoch(team, num_epochs=2):
    model, optimizer, first = begin(team, samples(12))
    second, seen = team.prepare(samples(18)), team.register("seen", [])
    for _ in team.epochs(num_epochs):
        for batch in first:
            seen.append(learn(team, model, optimizer, batch))
        seen.append([*drawn(), first.averages["loss"]])
        for batch in second:
            learn(team, model, optimizer, batch)
            if team.step % 5 == 4:
                break
        seen.append(drawn())


def a_loop_within_the_loop(team, num_epochs=2):
    model, optimizer, outer = begin(team, samples(12))
    inner, seen = team.prepare(samples(12)), team.register("seen", [])
    for _ in team.epochs(num_epochs):
        for batch in outer:
            learn(team, model, optimizer, batch)
            for other in inner:
                seen.append(learn(team, model, optimizer, other))
        seen.append([outer.averages["loss"], inner.averages["loss"]])


class Warming(torch.optim.RMSprop):
    """It counts its steps in an attribute."""

    def __init__(self, parameters):
        super().__init__(parameters)
        self.num_steps = 0

    def step(self, closure=None):
        self.num_steps = self.num_steps + 1
        for group in self.param_groups:
            group["lr"] = 0.01 * min(1.0, self.num_steps / 5)
        return super().step(closure)


def two_phases_a_step(team, num_epochs=2):
    """As adversarial networks have them, with a third optimizer that steps after every second
    step, so that gradients stay between steps."""
    model, optimizer, loader = begin(team, samples(36))
    critic, late = nn.Linear(2, 1), nn.Linear(FEATURES, 2)
    of_critic, of_late = torch.optim.Adagrad(critic.parameters()), Warming(late.parameters())
    critic, of_critic, late, of_late = team.prepare(critic, of_critic, late, of_late)
    for _ in team.epochs(num_epochs):
        for batch in loader:
            for features, _ in batch.shards:
                team.backward(-critic(model(features)).mean() + late(features).square().mean())
            optimizer.step()
            for features, _ in batch.shards:
                with torch.no_grad():
                    made = model(features)
                team.backward(critic(made).square().mean())
            of_critic.step()
            optimizer.zero_grad()
            of_critic.zero_grad()
            if team.step % 2 == 0:
                of_late.step()
                of_late.zero_grad()


def samplers_with_generators(team, num_epochs=2):
    own = RandomSampler(Samples(18), replacement=True, num_samples=12, generator=torch.Generator().manual_seed(5))
    weighted = WeightedRandomSampler(torch.rand(18) + 0.1, 12, generator=torch.Generator().manual_seed(6))
    first = samples(shuffle=False, sampler=own)
    second = DataLoader(Samples(18), batch_sampler=BatchSampler(weighted, BATCH, drop_last=False))
    model, optimizer, first = begin(team, first)
    second = team.prepare(second)
    for _ in team.epochs(num_epochs):
        for batch in itertools.chain(first, second):
            learn(team, model, optimizer, batch)


def a_stream_with_a_bookmark(team, num_epochs=2):
    model, optimizer, loader = begin(team, DataLoader(Bookmarked(), BATCH))
    for _ in team.epochs(num_epochs):
        for batch in loader:
            learn(team, model, optimizer, batch)


def two_loops_over_epochs(team, num_epochs=2):
    """After the first, most weights are frozen and another optimizer trains a new model, too."""
    model, optimizer, loader = begin(team, samples(12))
    cosine = team.prepare(CosineAnnealingLR(optimizer, 4))
    for _ in team.epochs(num_epochs):
        for batch in loader:
            learn(team, model, optimizer, batch)
        cosine.step()
    for parameter in team.unwrap(model)[0].parameters():
        parameter.requires_grad_(False)
    head = nn.Linear(2, 2)
    head, fine = team.prepare(head, torch.optim.Adam([*model.parameters(), *head.parameters()]))
    seen = team.register("seen", [])
    epochs = team.epochs(num_epochs)
    for _ in range(2):  # no epoch is left the second time
        for _ in epochs:
            for batch in loader:
                seen.append(learn(team, lambda features: head(model(features)), fine, batch))


SCRIPTS = {
    each.__name__.replace("_", " "): each
    for each in (
        schedules_averages_and_random_numbers,
        registered_state,
        the_best_weights_and_early_stopping,
        an_evaluation_that_decides,
        passes_counted_by_the_script,
        a_tail_after_the_last_epoch,
        a_tail_of_registered_state,
        a_second_loader_that_goes_round_by_itself,
        a_second_loader_in_passes_counted_by_the_script,
        a_second_loader_that_is_made_again,
        two_passes_an_epoch,
        a_loop_within_the_loop,
        two_phases_a_step,
        samplers_with_generators,
        a_stream_with_a_bookmark,
        two_loops_over_epochs,
    )
}
