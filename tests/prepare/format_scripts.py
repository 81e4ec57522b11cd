"""Trainings in 16 bits, in worker processes. Each function is one rank's script."""

import torch
from torch import nn
from torch.nn import functional
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def data(length=32, batch_size=8):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(length, 6, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs.argmax(1) % 3), batch_size)


def formats(tensors):
    return sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})


class Net(nn.Module):
    """A layer of every kind that matters: BatchNorm, another normalisation, a buffer, weights that
    are used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3))
        self.register_buffer("shift", torch.linspace(0, 1, 8))

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.first(x)) + self.shift)
        self.seen = {"inputs": x.dtype, "hidden": hidden.dtype, **{name: p.dtype for name, p in self.named_parameters()}}
        return self.last(hidden)


def where_what_is():
    """In which formats everything is in a training: told by rank 0."""
    with lockstep.join() as team:
        model = Net()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer, loader = team.prepare(model, optimizer, data())
        assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
        assert all(one is other for one, other in zip(parameters, optimizer.param_groups[0]["params"], strict=True))
        for batch in loader:
            for inputs, targets in batch.shards:
                outputs = model(inputs)
                team.backward(functional.cross_entropy(outputs, targets))
            in_passes = dict(model.seen)
            gradients = formats(parameter.grad for parameter in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            model.eval()(torch.zeros(2, 6))
        return {
            "parameters": formats(parameters),
            "statistics": formats([model.norm.running_mean]),
            "buffer": formats([model.shift]),
            "in passes": {name: str(dtype).removeprefix("torch.") for name, dtype in in_passes.items()},
            "same in evaluation": in_passes == model.seen,
            "outputs": formats([outputs]),
            "gradients": gradients,
            "state": formats(value for slots in optimizer.state.values() for value in slots.values()),
        }


def kinds_of_reduction():
    """How often PyTorch's DDP has reduced gradients while the backward pass ran, by step."""
    with lockstep.join() as team:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = team.prepare(model, optimizer, data())
        launched = []
        for batch in loader:
            for inputs, targets in batch.shards:
                team.backward(functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            launched.append(team._engine.strategy.engines[0].launched)
        return launched


class Repeating(nn.Module):
    """Two layers, which a backward pass may compute again."""

    def __init__(self, *, repeats):
        super().__init__()
        self.repeats = repeats
        self.inner = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))

    def forward(self, x, *, shift):
        x = x + shift
        return checkpoint(self.inner, x, use_reentrant=False) if self.repeats else self.inner(x)


def computed_again():
    """The formats of outputs and gradients of two models, of which one computes its layers again,
    and whether their gradients are equal."""
    with lockstep.join() as team:
        kept, repeating = Repeating(repeats=False), Repeating(repeats=True)
        repeating.load_state_dict(kept.state_dict())
        *models, loader = team.prepare(kept, repeating, data())
        outputs = []
        for batch in loader:
            for inputs, targets in batch.shards:
                for model in models:
                    output = model(inputs, shift=torch.ones(6))
                    outputs += formats([output])
                    team.backward(functional.cross_entropy(output, targets))
        gradients = [[parameter.grad for parameter in model.parameters()] for model in models]
        are_equal = all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
        return outputs, formats(gradients[0] + gradients[1]), are_equal


def averaged(use_buffers):
    """A moving average that was made of float32 weights, and what it should be."""
    with lockstep.join() as team:
        model = Net()
        average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.999), use_buffers=use_buffers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, average, optimizer, loader = team.prepare(model, average, optimizer, data())
        by_hand = None
        for batch in loader:
            for inputs, targets in batch.shards:
                team.backward(functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            now = model.first.weight.detach().float()
            by_hand = now.clone() if by_hand is None else by_hand.lerp_(now, 1 - 0.999)
        assert average(torch.zeros(2, 6)).dtype == torch.float32
        return formats(average.parameters()), torch.equal(average.module.first.weight, by_hand)


def overflowed(then):
    """Whether the weights of two models change, by step, if the loss of the first is too large for
    float16 in steps 1 and 3."""
    with lockstep.join() as team:
        models = [nn.Linear(4, 1, bias=False) for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        *prepared, loader = team.prepare(*models, *optimizers, [torch.ones(4, 4)] * 4)
        changes = []
        for batch in loader:
            before = [model.weight.detach().clone() for model in models]
            for inputs in batch.shards:
                first, second = (model(inputs).mean() / 64 for model in prepared[:2])
                team.backward(first * (1e30 if team.step % 2 else 1.0) + second)
            if then == "clip":
                nn.utils.clip_grad_value_([parameter for model in models for parameter in model.parameters()], 1.0)
            if then == "clear" and team.step % 2:
                for optimizer in optimizers:
                    optimizer.zero_grad(set_to_none=False)
                for inputs in batch.shards:
                    team.backward(sum(model(inputs).mean() / 64 for model in prepared[:2]))
            for optimizer in prepared[2:]:
                optimizer.step()
                optimizer.zero_grad()
            changes.append([not torch.equal(model.weight, old) for model, old in zip(models, before, strict=True)])
        return changes


def resumed_state():
    """An optimizer that has taken steps before it is prepared: its state, in the format of its
    parameters."""
    with lockstep.join() as team:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, eps=1e-4)
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model, optimizer, loader = team.prepare(model, optimizer, data())
        for batch in loader:
            for inputs, targets in batch.shards:
                team.backward(functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
        return formats(value for slots in optimizer.state.values() for value in slots.values() if value.ndim)


REFUSED = {
    "eps": lambda team: team.prepare(*_with(torch.optim.AdamW)),
    "scaler": lambda team: team.prepare(torch.amp.GradScaler("cpu")),
}


def _with(kind):
    model = nn.Linear(2, 2)
    return model, kind(model.parameters())


def refused(what):
    with lockstep.join() as team:
        REFUSED[what](team)
