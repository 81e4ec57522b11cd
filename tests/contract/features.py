"""Trainings that use one feature each, for test_to_the_bit. Every function is one rank's script."""

import random
import time
import warnings

import torch
from bits import Seen, bits
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler, swa_utils
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, Sampler
from toy_models import ChannelsLast, CodeBook, HandNorm, Net, Plain, Points, SometimesUnused, Tied

import lockstep


class Stream(IterableDataset):
    """The same samples, but only one after another."""

    def __init__(self, points):
        self.points = points

    def __len__(self):
        return len(self.points)

    def __iter__(self):
        return (self.points[index] for index in range(len(self.points)))


class Ready:
    """The same samples as ready batches, some larger than others."""

    def __init__(self, points, batch_size):
        self.points, self.batch_size = points, batch_size

    def __len__(self):
        return -(-len(self.points) // self.batch_size)

    def __iter__(self):
        for first in range(0, len(self.points), self.batch_size):
            indices = range(first, min(first + self.batch_size - first % 3, len(self.points)))
            inputs, targets, numbers = zip(*(self.points[index] for index in indices), strict=True)
            yield torch.stack(inputs), torch.stack(targets), torch.tensor(numbers)


def loader_of(kind, length, batch_size, workers=0):
    points = Points(length)
    if kind == "ready":
        return Ready(points, batch_size)
    if kind == "stream":
        return DataLoader(Stream(points), batch_size, num_workers=workers)
    return DataLoader(points, batch_size, shuffle=True, num_workers=workers)


class Deep(nn.Module):
    """Two normalised blocks, which ``checkpoint`` can run again."""

    def __init__(self, use_reentrant=None):
        super().__init__()
        self.use_reentrant = use_reentrant
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2)) for _ in range(2)
        )
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        # else the reentrant kind has no gradients to work with
        x.requires_grad_(self.use_reentrant is True)
        for block in self.blocks:
            x = block(x) if self.use_reentrant is None else checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.last(x)


class Normed(nn.Module):
    """Blocks whose weights a hook computes before each forward pass; the data choose between the
    results of two."""

    def __init__(self):
        super().__init__()
        blocks = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        # still used, in vocoders say
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            self.blocks = nn.ModuleList([blocks[0], nn.utils.weight_norm(blocks[1]), nn.utils.spectral_norm(blocks[2])])
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        first, second, third = self.blocks
        inner = torch.tanh(first(x))
        return self.last(torch.where(x[0, 0] > 0, second(inner), third(inner)))


class Narrow(Plain):
    """Parameters, and so gradients, of 16 bits."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        self.to(dtype)

    def forward(self, x):
        return super().forward(x.to(self.dtype)).float()


class Mixed(nn.Module):
    """Parameters of many dtypes, shapes and memory orders."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.long = nn.Linear(8, 8).double()
        self.narrow = nn.Linear(8, 8).bfloat16()
        self.turned = nn.Parameter(torch.randn(8, 3).t())
        self.waves = nn.Parameter(torch.randn(3, 5, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.empty(0, 4))

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        hidden = torch.tanh(self.narrow(torch.tanh(self.long(hidden.double())).bfloat16())).float()
        waves = self.waves.abs().sum(1) + self.waves.real.mean() + self.nothing.sum()
        return self.scale * (hidden @ self.turned.t()) + waves


MODELS = {
    **{kind.__name__: kind for kind in (ChannelsLast, CodeBook, HandNorm, Net, Plain, SometimesUnused, Tied)},
    "LateBuffer": lambda: LateBuffer(False),
    "Mixed": Mixed,
    "Deep": Deep,
    "Normed": Normed,
    "not reentrant": lambda: Deep(False),
    "reentrant": lambda: Deep(True),
    "bfloat16": lambda: Narrow(torch.bfloat16),
    "compiled, aot_eager": lambda: torch.compile(Net(), backend="aot_eager", dynamic=False),
    "compiled, inductor": lambda: torch.compile(Net(), dynamic=False),
}


class InAttributes(torch.optim.Optimizer):
    """Adam without its division, whose state is in attributes: a count, momenta in a list, and
    norms by parameter."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.02})
        self.count, self.momenta = 0, [torch.zeros_like(p) for p in self.param_groups[0]["params"]]
        self.norms = {}

    @torch.no_grad()
    def step(self):
        self.count += 1
        for p, momentum in zip(self.param_groups[0]["params"], self.momenta, strict=True):
            if p.grad is not None:
                self.norms[p] = 0.9 * self.norms.get(p, 0.1) + 0.1 * p.grad.norm()
                momentum.mul_(0.9).add_(p.grad / self.norms[p])
                p.sub_(momentum / (1 - 0.9**self.count), alpha=self.param_groups[0]["lr"])


class InOptions(torch.optim.Optimizer):
    """Keeps what it has computed for a step in a list among the options, as the first RAdam does,
    and AdaBelief and Ranger."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.02, "buffer": [[None, None] for _ in range(4)]})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                state["momentum"] = 0.9 * state.get("momentum", torch.zeros_like(p)) + p.grad
                cached = group["buffer"][state["step"] % 4]
                if cached[0] != state["step"]:
                    cached[:] = [state["step"], 1 / (1 - 0.9 ** state["step"])]
                p.sub_(state["momentum"], alpha=group["lr"] * cached[1])


OPTIMIZERS = {
    "in attributes": InAttributes,
    "in options": InOptions,
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    **{
        f"{kind.__name__}, {variant}": lambda parameters, kind=kind, options=options, variant=variant: kind(
            parameters, lr=0.02, weight_decay=0.01, **{variant: True}, **options
        )
        for kind, options in (
            (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
            (torch.optim.Adam, {"amsgrad": True}),
            (torch.optim.AdamW, {}),
        )
        for variant in ("foreach", "fused")
    },
}

SCHEDULES = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3)),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 6),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=20),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.7)], [3]
    ),
}


def weight_of(kind, targets, indices):
    """What a shard weighs: its samples, tokens of a kind, or for some shards nothing."""
    if kind == "tokens":
        return float(targets.sum() + 1)
    if kind == "zeros":
        return 0 if int(indices[0]) % 3 == 0 else len(indices)
    return None


def learn(team, model, batch, seen, phase=0):
    """A backward pass for the mean loss of each shard."""
    for inputs, targets, indices in batch.shards:
        loss = functional.cross_entropy(model(inputs), targets)
        seen.loss(indices, loss, phase)
        team.backward(loss)
        batch.add(loss=loss)


def train(
    model="Net",
    optimizer="AdamW, foreach",
    schedule="cosine",
    loader="samples",
    weight=None,
    clip=1.0,
    length=43,
    batch_size=16,
    epochs=2,
    set_to_none=True,
):
    """A loop that takes any of these."""
    team = lockstep.join()
    network = MODELS[model]()
    optimizer = OPTIMIZERS[optimizer](network.parameters())
    schedule = SCHEDULES[schedule](optimizer)
    network, optimizer, schedule, loader = team.prepare(network, optimizer, schedule, loader_of(loader, length, batch_size))
    seen = Seen(team)
    for _ in team.epochs(epochs):
        for batch in loader:
            for inputs, targets, indices in batch.shards:
                loss = functional.cross_entropy(network(inputs), targets)
                seen.loss(indices, loss)
                share = weight_of(weight, targets, indices)
                if share == 0:
                    loss = loss * float("nan")  # a mean over nothing
                team.backward(loss, weight=share)
                batch.add(loss=loss)
            seen.gradients(network)
            seen.step(loss=batch["loss"], num_samples=batch.num_samples)
            seen.step(norm=team.clip_grad_norm_(network.parameters(), clip))
            optimizer.step()
            schedule.step()
            if set_to_none is not None:  # else they add up
                optimizer.zero_grad(set_to_none=set_to_none)
        seen.step(averages=loader.averages)
    return seen.result(network, optimizer, schedule, steps=team.step)


# Averages, several optimizers, frozen and kept parameters


def train_averages():
    """Averages of the weights as SWA takes them, and as EMA does, with the buffers."""
    team = lockstep.join()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    swa = swa_utils.AveragedModel(model)
    ema = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
    schedule = swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
    model, optimizer, schedule, swa, ema, loader = team.prepare(
        model, optimizer, schedule, swa, ema, loader_of("samples", 43, 16)
    )
    seen = Seen(team)
    for epoch in team.epochs(2):
        for batch in loader:
            learn(team, model, batch, seen)
            optimizer.step()
            optimizer.zero_grad()
            ema.update_parameters(model)
            seen.step(ema=ema.state_dict())
        swa.update_parameters(model)
        if epoch:
            schedule.step()
    return seen.result(model, optimizer, schedule, swa, ema, updates=[int(swa.n_averaged), int(ema.n_averaged)])


def train_two_optimizers():
    """One optimizer for each part of a model, one of which acts in every other step only."""
    team = lockstep.join()
    model = Deep()
    often = torch.optim.Adam(model.blocks.parameters(), lr=0.02)
    seldom = torch.optim.SGD(model.last.parameters(), lr=0.1, momentum=0.9)
    model, often, seldom, loader = team.prepare(model, often, seldom, loader_of("samples", 43, 16))
    seen = Seen(team)
    for _ in team.epochs(2):
        for batch in loader:
            learn(team, model, batch, seen)
            seen.gradients(model)
            often.step()
            often.zero_grad()
            if team.step % 2 == 0:  # its gradients add up until then
                seldom.step()
                seldom.zero_grad()
    return seen.result(model, often, seldom)


def train_frozen(model="Net", length=94, frozen=(3, 4)):
    """A layer is frozen for some steps."""
    team = lockstep.join()
    model = MODELS[model]()
    model.first.requires_grad_(1 not in frozen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("samples", length, 16))
    seen = Seen(team)
    for _ in team.epochs(2):
        for batch in loader:
            learn(team, model, batch, seen)
            seen.gradients(model)
            optimizer.step()
            optimizer.zero_grad()
            model.first.requires_grad_(team.step + 1 not in frozen)
    return seen.result(model, optimizer)


KEEPING = {
    "itself": lambda gradient: gradient,
    "detached": lambda gradient: gradient.detach(),
    "flattened": lambda gradient: gradient.flatten(),
    "a part": lambda gradient: gradient[:1],
    "as an array": lambda gradient: gradient.numpy(),
}


def keep_what_was_given():
    """The gradients of every step are kept, in ways that share their memory, and looked at again at
    the end."""
    team = lockstep.join()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("samples", 48, 8))
    seen = Seen(team)
    kept = []
    for batch in loader:
        for inputs, targets, _ in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
        for number, parameter in enumerate(model.parameters()):
            for how in KEEPING.values():
                given = how(parameter.grad)
                kept.append((team.step, number, given, bits(torch.as_tensor(given))))
        optimizer.step()
        optimizer.zero_grad()
    changed = [(step, number) for step, number, given, before in kept if bits(torch.as_tensor(given)) != before]
    return seen.result(model, changed=changed, num_kept=len(kept))


def train_two_losses(how):
    """Two backward passes for each shard, one after another or in phases of their own; each may
    have its own weights."""
    team = lockstep.join()
    model, judge = Net(), Plain()
    if how == "through a shared layer":
        judge.last = model.last
    optimizer = torch.optim.AdamW(dict.fromkeys([*model.parameters(), *judge.parameters()]), lr=0.02)
    model, judge, optimizer, loader = team.prepare(model, judge, optimizer, loader_of("samples", 43, 16))
    seen = Seen(team)
    for _ in team.epochs(2):
        for batch in loader:
            if how == "in phases":  # their gradients add up
                for inputs, targets, indices in batch.shards:
                    one = functional.cross_entropy(model(inputs), targets)
                    seen.loss(indices, one)
                    team.backward(one, weight=float(targets.sum() + 1))
                    batch.add(one=one)
                for inputs, targets, indices in batch.shards:
                    two = functional.mse_loss(model(inputs), judge(inputs))
                    seen.loss(indices, two, phase=1)
                    team.backward(two, weight=len(targets) / 7)
                    batch.add(two=two)
            elif how == "with a forward pass between them":
                for inputs, targets, indices in batch.shards:
                    one = functional.cross_entropy(model(inputs), targets)
                    seen.loss(indices, one)
                    team.backward(one)
                    two = functional.mse_loss(model(inputs + 1), judge(inputs))
                    team.backward(two, weight=len(targets) / 7)
                    batch.add(one=one, two=two)
            elif how == "with one model frozen":
                for inputs, targets, indices in batch.shards:
                    outputs = model(inputs)
                    one = functional.mse_loss(judge(inputs), outputs.detach())
                    seen.loss(indices, one)
                    team.backward(one)
                    judge.requires_grad_(False)
                    two = functional.mse_loss(judge(inputs), outputs) + functional.cross_entropy(outputs, targets)
                    team.backward(two)
                    judge.requires_grad_(True)
                    batch.add(one=one, two=two)
            else:
                for inputs, targets, indices in batch.shards:
                    outputs, judged = model(inputs), judge(inputs)
                    one, two = functional.cross_entropy(outputs, targets), functional.mse_loss(outputs, judged)
                    seen.loss(indices, one + two)
                    weights = (float(targets.sum() + 1), len(targets) / 7) if how == "by weights" else (None, None)
                    team.backward(one, weights[0], retain_graph=True)
                    team.backward(two, weights[1])
                    batch.add(one=one, two=two)
            seen.step(one=batch["one"], two=batch["two"])
            seen.gradients(model, judge)
            seen.step(norm=team.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
            optimizer.zero_grad()
    return seen.result(model, judge, optimizer)


def train_and_look(how):
    """The model runs again after the backward pass, or after the update, and is evaluated in the
    middle of a pass."""
    team = lockstep.join()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    test_loader = DataLoader(Points(21), 8)
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("samples", 43, 16))
    seen = Seen(team)
    for _ in team.epochs(2):
        for batch in loader:
            for inputs, targets, indices in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                seen.loss(indices, loss)
                team.backward(loss)
                if how == "after the backward pass":
                    model(inputs)
            optimizer.step()
            optimizer.zero_grad()
            if how == "after the update, with gradients":
                seen.step(outputs=model(torch.randn(4, 6)))
            if how == "after the update, over the shards":
                with torch.no_grad():
                    for inputs, targets, _ in batch.shards:
                        batch.add(loss=functional.cross_entropy(model(inputs), targets))
                seen.step(loss=batch["loss"])
            if how == "evaluation":
                with team.evaluate(model, test_loader) as evaluation:
                    for batch in evaluation:
                        for points, labels, _numbers in batch.shards:
                            batch.add(loss=functional.cross_entropy(model(points), labels))
                seen.step(loss=evaluation["loss"], buffers=dict(model.named_buffers()))
    if how == "by rank 0 alone at the end" and team.rank == 0:
        model.eval()(torch.zeros(2, 6)).sum().backward()
    return seen.result(model, optimizer)


class History(list):
    """State of a library that drives training."""

    def state_dict(self):
        return {"items": list(self)}

    def load_state_dict(self, state):
        self[:] = state["items"]


def train_hosted():
    """A library drives the epochs, counts batches to ``len(loader)``, and reads what single shards
    and batches computed."""
    team = lockstep.join()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    test_loader = DataLoader(Points(21), 4)
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("samples", 43, 16))
    history = team.register("history", History())
    seen = Seen(team)
    epochs = team.hosted_epochs(2)
    for epoch in range(epochs.first, 2):
        epochs.begin(epoch)
        batches = iter(loader)
        for _ in range(loader.num_skipped, len(loader)):
            batch = next(batches)
            for inputs, targets, indices in batch.shards:
                logits = model(inputs)
                loss = functional.cross_entropy(logits, targets)
                seen.loss(indices, loss)
                team.backward(loss)
                batch.share((team.shard, logits, targets, indices.tolist()))
            shared = batch.shared()
            optimizer.step()
            optimizer.zero_grad()
            history.append(float(torch.cat([logits for _, logits, *_ in shared]).double().sum()))
            seen.step(shared=shared, history=history)
        loader.finish()
        with team.evaluate(model, test_loader, share=True) as evaluation:
            for batch in evaluation:
                for points, _, numbers in batch.shards:
                    batch.share({"logits": model(points), "numbers": numbers})
                seen.step(**{f"batch {batch.number}": batch.shared()})
    epochs.end()
    return seen.result(model, optimizer, history=list(history))


def train_two_loaders(strict=True):
    """Two loaders go along with each other, batch by batch and shard by shard."""
    team = lockstep.join()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loaders = loader_of("samples", 46, 8), loader_of("samples", 46, 8, workers=1)
    model, optimizer, one, two = team.prepare(model, optimizer, *loaders)
    seen = Seen(team)
    for _ in team.epochs(2):
        for batch, other in zip(one, two, strict=strict):
            for (inputs, targets, indices), (others, _, numbers) in zip(batch.shards, other.shards, strict=strict):
                loss = functional.cross_entropy(model(inputs + others), targets)
                seen.loss([*indices, *numbers], loss)
                team.backward(loss)
                batch.add(loss=loss)
                other.add(distance=(inputs - others).square().mean())
            seen.step(loss=batch["loss"], distance=other["distance"])
            seen.gradients(model)
            optimizer.step()
            optimizer.zero_grad()
    return seen.result(model, optimizer, steps=team.step)


class GoesOn(Sampler):
    """Goes on where it was when a pass is left."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        for _ in range(43):
            self.position += 1
            yield 5 * self.position % 43


def train_with_samplers():
    """Passes that are left early, of loaders that go on, and evaluations whose order is drawn from
    a generator."""
    team = lockstep.join()
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    points, generator = Points(43), torch.Generator().manual_seed(1)
    loaders = (
        DataLoader(points, 8, shuffle=True, generator=generator, num_workers=1),
        DataLoader(points, 7, sampler=GoesOn(), num_workers=1),
    )
    held_out = DataLoader(points, 8, shuffle=True, generator=torch.Generator().manual_seed(2))
    model, optimizer, *loaders = team.prepare(model, optimizer, *loaders)
    seen = Seen(team)
    for _ in team.epochs(3):
        for loader in loaders:
            for batch in loader:
                learn(team, model, batch, seen)
                seen.step(loss=batch["loss"], position=loaders[1].sampler.position, state=bits(generator.get_state()))
                optimizer.step()
                optimizer.zero_grad()
                if team.step in (2, 3, 5, 7, 9, 12):
                    break
        orders = []
        with team.evaluate(model, held_out) as evaluation:
            for batch in evaluation:
                for inputs, targets, indices in batch.shards:
                    batch.add(loss=functional.cross_entropy(model(inputs), targets))
                    batch.add(order=indices.double() * 10.0 ** (batch.number % 3))
        orders.append(evaluation["order"])
        seen.step(evaluated=evaluation["loss"], orders=orders)
    return seen.result(model, optimizer, steps=team.step)


# Sixteen bits


def train_scaled(whose, optimizer, accumulate=1, clip=True):
    """float16 autocast with the loss scaled, and an overflow in one shard of step 3: the step is
    skipped."""
    own = whose == "script"
    team = lockstep.join(precision="32-true" if own else "16-mixed", accumulate=accumulate)
    model = Deep()
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    if own:
        scaler = team.prepare(scaler)
    else:  # the run's own, set to the same
        team._loop.phases.trained.scaling.scaler.load_state_dict(scaler.state_dict())
        scaler = team._loop.phases.trained.scaling.scaler
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("stream", 48 * accumulate, 16))
    seen = Seen(team)
    for _ in team.epochs(3):
        for batch in loader:
            for inputs, targets, indices in batch.shards:
                with torch.autocast("cpu", torch.float16, enabled=own):
                    outputs = model(inputs)
                loss = functional.cross_entropy(outputs.float(), targets)
                if team.step == 3 and 32 * accumulate + 5 in indices:
                    loss = loss * 1e7
                seen.loss(indices, loss)
                team.backward(scaler.scale(loss) if own else loss)
                batch.add(loss=loss)
            seen.step(loss=batch["loss"])
            if own:
                scaler.unscale_(optimizer)
            if clip:
                seen.step(norm=team.clip_grad_norm_(model.parameters(), 1.0))
            if own:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
            seen.step(weight=model.last.weight, scale=scaler.get_scale())
    return seen.result(model, optimizer, scaler, scale=scaler.get_scale())


def leave_the_loop(precision):
    """The loop is left after every step, and entered again."""
    team = lockstep.join(precision=precision)
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("ready", 24, 8))
    seen = Seen(team)
    for _ in team.epochs(4):
        for batch in loader:
            learn(team, model, batch, seen)
            seen.step(norm=team.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            optimizer.zero_grad()
            break
    return seen.result(model, optimizer, steps=team.step)


# Disturbed


class Late(nn.Module):
    """Makes its process late now and then: before it goes on forward, and before it goes on
    backward."""

    def __init__(self, rank, number):
        super().__init__()
        # a generator that no stream of the run knows
        self.dice = random.Random(100 * rank + number)

    def wait(self, gradient=None):
        time.sleep(self.dice.choice((0, 0, 0.002, 0.01)))
        return gradient

    def forward(self, x):
        self.wait()
        if x.requires_grad:
            x.register_hook(self.wait)
        return x


def train_wide(delayed, length=64):
    """More parameters than one bucket holds, in processes that are late at random."""
    team = lockstep.join()
    layers = []
    norm = nn.BatchNorm1d if length % 16 == 0 else nn.LayerNorm  # for shards of one sample
    for number in range(4):
        late = [Late(team.rank, number)] if delayed else [nn.Identity()]
        layers += [nn.Linear(6 if number == 0 else 500, 500), norm(500), nn.ReLU(), *late]
    model = nn.Sequential(*layers, nn.Linear(500, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("samples", length, 16))
    seen = Seen(team)
    for _ in team.epochs(2):
        for batch in loader:
            for inputs, targets, indices in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                seen.loss(indices, loss)
                team.backward(loss, weight=float(targets.sum() + 1))
                batch.add(loss=loss)
            seen.step(loss=batch["loss"], norm=team.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            optimizer.zero_grad()
    return seen.result(model, optimizer)


# Beside plain PyTorch


# Refused, and what is nearly the same


class LateBuffer(Plain):
    """Makes a buffer in its first forward pass, and follows its inputs with it, or makes it once
    and for all."""

    def __init__(self, changes):
        super().__init__()
        self.changes = changes
        self.register_buffer("scale", None)

    def forward(self, x):
        if self.scale is None:
            self.scale = torch.full((6,), 0.5)
        elif self.changes:
            self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().mean(0)
        return super().forward(x * self.scale)


class UsedAgain(nn.Module):
    """A layer inside a reentrant checkpoint, and outside of it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return checkpoint(self.layer, torch.tanh(self.layer(x)), use_reentrant=True)


def refused(what):
    """What cannot be the same at every world size, or not be had at all."""
    team = lockstep.join()
    model = Net()
    if what == "late buffer":
        model = LateBuffer(True)
    elif what == "used inside and outside":
        model = UsedAgain()
    model, loader = team.prepare(model, loader_of("samples", 24, 12))
    for batch in loader:
        for inputs, targets, _ in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
