"""Trainings with several phases a step, and what scripts do between the shards of one step and
those of the next.

Every training is one rank's script. 33 samples in batches of 8: the last step of a pass has one
sample, so that most ranks have none, and run the same code.
"""

import itertools
import random
from functools import partial

import numpy
import torch
from bits import Seen
from features import learn, loader_of
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from toy_models import Net, Plain

import lockstep


class Quiet(nn.Module):
    """Dropout, and no BatchNorm, so that shards of one sample are welcome."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(functional.dropout(torch.tanh(self.norm(self.first(x))), 0.2, self.training))


# Several phases


def train_gan():
    """The judge learns in two phases of a step, the maker in a third, which gives the judge
    gradients too."""
    team = lockstep.join()
    maker, judge = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 6)), Plain()
    making, judging = (torch.optim.Adam(model.parameters(), lr=0.02) for model in (maker, judge))
    maker, judge, making, judging, loader = team.prepare(maker, judge, making, judging, loader_of("samples", 33, 8))
    seen = Seen(team)
    for _ in team.epochs(2):
        for batch in loader:
            for phase in range(2):
                for inputs, _, indices in batch.shards:
                    with torch.no_grad():
                        made = maker(torch.randn(len(inputs), 4))
                    loss = functional.softplus(judge(made)).mean() + functional.softplus(-judge(inputs)).mean()
                    seen.loss(indices, loss, phase)
                    team.backward(loss)
                    batch.add(judged=loss)
                judging.step()
                judging.zero_grad()
                seen.step(**{f"judged {phase}": batch["judged"]})
            for inputs, _, indices in batch.shards:
                loss = functional.softplus(-judge(maker(torch.randn(len(inputs), 4)))).mean()
                seen.loss(indices, loss, phase=2)
                team.backward(loss)
                batch.add(fooled=loss)
            seen.step(judged=batch["judged"], fooled=batch["fooled"])
            seen.gradients(maker, judge)
            making.step()
            for optimizer in (making, judging):
                optimizer.zero_grad()
        seen.step(averages=loader.averages)
    return seen.result(maker, judge, making, judging)


def overflow_in_one_phase():
    """In step 2 the maker's phase overflows, which gives the judge gradients too; they are cleared,
    and not used."""
    team = lockstep.join(precision="16-mixed")
    team._loop.phases.trained.scaling.scaler.load_state_dict(torch.amp.GradScaler("cpu", init_scale=2.0**8).state_dict())
    maker, judge = nn.Linear(6, 6), Plain()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (maker, judge)]
    maker, judge, making, judging, loader = team.prepare(maker, judge, *optimizers, loader_of("ready", 32, 8))
    seen = Seen(team)
    for batch in loader:
        for name, optimizer, learner in (("judge", judging, judge), ("maker", making, maker)):
            for inputs, _, indices in batch.shards:
                loss = judge(inputs if learner is judge else maker(inputs)).square().mean()
                if team.step == 2 and learner is maker:
                    loss = loss * 1e9
                seen.loss(indices, loss, phase=int(learner is maker))
                team.backward(loss)
            before = [parameter.detach().clone() for parameter in learner.parameters()]
            optimizer.step()
            moved = not all(torch.equal(one, other) for one, other in zip(before, learner.parameters(), strict=True))
            seen.step(**{name: moved})
            making.zero_grad()
            judging.zero_grad()
    return seen.result(maker, judge)


def train_sharp():
    """Sharpness-aware: the gradient is taken where a first gradient, over the same samples, leads
    uphill."""
    team = lockstep.join()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("samples", 43, 16))
    parameters = list(model.parameters())
    seen = Seen(team)
    for _ in team.epochs(2):
        for batch in loader:
            for phase in range(2):
                learn(team, model, batch, seen, phase)
                if phase == 0:
                    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in parameters]))
                    offsets = [0.05 * p.grad / norm for p in parameters]
                    with torch.no_grad():
                        torch._foreach_add_(parameters, offsets)
                    optimizer.zero_grad()
                    seen.step(norm=norm, first=batch["loss"])
            with torch.no_grad():
                torch._foreach_sub_(parameters, offsets)
            seen.gradients(model)
            seen.step(second=batch["loss"])
            optimizer.step()
            optimizer.zero_grad()
    return seen.result(model, optimizer)


CLOSURES = {
    "Adam": partial(torch.optim.Adam, lr=0.02),
    "LBFGS, strong_wolfe": partial(torch.optim.LBFGS, max_iter=4, history_size=4, line_search_fn="strong_wolfe"),
}


def train_with_closures(kind, **settings):
    """The closure goes over the shards, as often as the optimizer calls it."""
    team = lockstep.join(**settings)
    model = Plain()
    optimizer = CLOSURES[kind](model.parameters())
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("samples", 33, 8))
    seen = Seen(team)

    def closure(batch, phases):
        phase = next(phases)
        optimizer.zero_grad()
        learn(team, model, batch, seen, phase)
        seen.step(**{f"loss {phase}": batch["loss"]})
        return batch["loss"]

    for _ in team.epochs(2):
        for batch in loader:
            phases = itertools.count()
            seen.step(returned=float(optimizer.step(partial(closure, batch, phases))))
            seen.step(phases=next(phases))
    return seen.result(model, optimizer)


def train_in_words():
    """A state goes from batch to batch, one for each shard, with a count that the script changes in
    place."""
    team = lockstep.join()
    model = nn.Module()
    model.first, model.last = nn.Linear(6, 8), nn.Linear(8, 3)
    model.forward = partial(_read, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("ready", 33, 8))
    hidden = team.per_shard("hidden", torch.zeros(8))
    counts = team.per_shard("counts", {"samples": 0})
    seen = Seen(team)
    for epoch in team.epochs(2):
        if epoch:
            hidden.reset()
        for batch in loader:
            for inputs, targets, indices in batch.shards:
                outputs, after = model(inputs, hidden.value)
                loss = functional.cross_entropy(outputs, targets)
                seen.loss(indices, loss)
                team.backward(loss)
                hidden.value = after.detach()
                counts.value["samples"] += len(inputs)
                batch.add(loss=loss, samples=counts.value["samples"])
                batch.add(
                    classes=targets.bincount(minlength=3), total=inputs.double().sum(), num=len(inputs), reduction="sum"
                )
                batch.add(mean=outputs.mean(0), reduction="mean")
            seen.step(loss=batch["loss"], samples=batch["samples"])
            seen.step(**{name: batch[name] for name in ("classes", "total", "num", "mean")})
            optimizer.step()
            optimizer.zero_grad()
    return seen.result(model, optimizer)


def _read(model, x, hidden):
    hidden = torch.tanh(model.first(x) + hidden)
    return model.last(hidden), hidden.mean(0)


def draw_everywhere():
    """Random numbers from all three generators: before the shards, in them, between two phases, and
    after them."""
    team = lockstep.join()
    model, loader = team.prepare(Plain(), loader_of("samples", 33, 8))
    seen = Seen(team)
    for _ in team.epochs(2):
        for batch in loader:
            seen.step(before=_draw())
            for phase in range(2):
                for inputs, _, indices in batch.shards:
                    seen.loss(indices, torch.tensor(_draw()), phase)
                    team.backward(model(inputs).square().mean())
                    # how many are drawn in here does not matter outside
                    torch.rand(int(indices[0]) % 5)
                seen.step(**{f"after {phase}": _draw()})
        seen.step(tail=_draw())
    return seen.result(model, end=_draw())


def _draw():
    return [float(torch.rand(())), random.random(), float(numpy.random.random())]


# What scripts do between the shards of one step and those of the next, and resumes (more are in
# tests/idioms/topics)


def _noise(team, model, optimizer, seen):
    def update(batch):
        for parameter in model.parameters():
            scale = 0.05 * random.random() * numpy.random.random()
            parameter.grad.add_(torch.randn_like(parameter.grad), alpha=scale)
        optimizer.step()

    return update


def _plateau(team, model, optimizer, seen):
    schedule = team.prepare(lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.05))

    def update(batch):
        optimizer.step()
        schedule.step(batch["loss"])
        seen.step(rate=optimizer.param_groups[0]["lr"])

    return update


IDIOMS = {
    "noise on gradients": _noise,
    "ReduceLROnPlateau on the loss": _plateau,
}


def train_idiom(idiom):
    team = lockstep.join()
    model = Quiet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("samples", 33, 8))
    seen = Seen(team)
    update = IDIOMS[idiom](team, model, optimizer, seen)
    for _ in team.epochs(3):
        for batch in loader:
            for inputs, targets, indices in batch.shards:
                outputs = model(inputs)
                loss = functional.cross_entropy(outputs, targets)
                seen.loss(indices, loss)
                team.backward(loss)
                batch.add(loss=loss, accuracy=(outputs.argmax(1) == targets).float().mean())
            seen.step(loss=batch["loss"], accuracy=batch["accuracy"])
            update(batch)
            optimizer.zero_grad()
    return seen.result(model, optimizer, steps=team.step)
