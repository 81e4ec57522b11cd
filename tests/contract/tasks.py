"""Small trainings that stress one promise each. Every one returns its final state, and what it saw on the way."""

import random

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lockstep


class Points(Dataset):
    """Samples with noise from all three generators that user code draws from; each knows its index."""

    def __init__(self, length, features=6):
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(length, features, generator=generator)
        self.targets = torch.randint(0, 3, (length,), generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        noise = torch.rand(()) + random.random() + numpy.random.random()
        return self.inputs[index] + 0.1 * float(noise), self.targets[index], index


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        # No bias: BatchNorm takes it away, its gradient is rounding error, and Adam makes a full step of that.
        self.first = nn.Linear(6, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.drop(functional.relu(self.norm(self.first(x)))))


class Plain(nn.Module):
    """No BatchNorm, so that shards of one sample are welcome."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class Checkpointed(Net):
    def forward(self, x):
        hidden = checkpoint(lambda y: self.drop(functional.relu(self.norm(self.first(y)))), x, use_reentrant=False)
        return self.last(hidden)


class SometimesUnused(Plain):
    """One layer is never used, another only for shards whose first input is large."""

    def __init__(self):
        super().__init__()
        self.never = nn.Linear(6, 8)
        self.sometimes = nn.Linear(6, 8)

    def forward(self, x):
        hidden = self.first(x)
        if x[0, 0] > 0.9:
            hidden = hidden + self.sometimes(x)
        return self.last(torch.tanh(hidden))


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, (2, 3)).to(memory_format=torch.channels_last)
        self.conv2 = nn.Conv2d(4, 5, 1).to(memory_format=torch.channels_last)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        image = x.view(-1, 1, 2, 3).contiguous(memory_format=torch.channels_last)
        return self.last(torch.tanh(self.conv2(torch.tanh(self.conv(image)))).flatten(1))


class BFloat16(Plain):
    def __init__(self):
        super().__init__()
        self.bfloat16()

    def forward(self, x):
        return super().forward(x.bfloat16()).float()


MODELS = {kind.__name__: kind for kind in (Net, Plain, Checkpointed, Frozen, Tied, ChannelsLast, BFloat16)}


def state(model, optimizer=None):
    """Everything that must be equal, as one flat dict of float64 tensors."""
    found = {name: tensor.double().clone() for name, tensor in model.state_dict().items()}
    if optimizer is not None:
        for index, slots in optimizer.state_dict()["state"].items():
            found.update({f"optimizer {index} {key}": torch.as_tensor(v).double().clone() for key, v in slots.items()})
    return found


def classify_with_eps(eps, *args):
    """The same, for formats in which the usual eps is 0."""
    return classify(*args, eps=eps)


def classify(
    kind, length, batch_size, epochs=2, workers=0, zero_at="end", drop_last=False, weighted=False, eps=1e-8, **settings
):
    """A classification like any other."""
    team = lockstep.join(**settings)
    model = kind()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=eps)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    loader = DataLoader(Points(length), batch_size, shuffle=True, num_workers=workers, drop_last=drop_last)
    model, optimizer, scheduler, loader = team.prepare(model, optimizer, scheduler, loader)
    seen, norms, losses, means = [], [], [], []
    for _ in team.epochs(epochs):
        for batch in loader:
            if zero_at == "start":
                optimizer.zero_grad()
            for inputs, targets, indices in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                weight = float(targets.sum() + 1) if weighted else float(len(targets))
                team.backward(loss, weight=weight if weighted else None)
                batch.add(loss=loss)
                seen.append((team.step, indices.tolist()))
                losses.append((team.step, weight, loss.item()))
            norms.append(team.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
            scheduler.step()
            if zero_at == "end":
                optimizer.zero_grad()
            means.append(batch["loss"])
    return {
        "state": state(model, optimizer),
        "rate": scheduler.get_last_lr(),
        "seen": seen,
        "losses": losses,
        "means": means,
        "norms": norms,
        "steps": team.step,
    }


def train_gan(length, batch_size):
    """Two models and two optimizers, with the gradients of both losses before either steps."""
    team = lockstep.join()
    generator, judge = nn.Linear(4, 6), Plain()
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (generator, judge)]
    data = TensorDataset(torch.randn(length, 6, generator=torch.Generator().manual_seed(1)))
    generator, judge, *optimizers, loader = team.prepare(generator, judge, *optimizers, DataLoader(data, batch_size))
    for _ in team.epochs(2):
        for batch in loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
            for (real,) in batch.shards:
                fake = generator(torch.randn(len(real), 4)).detach()
                team.backward((judge(real).mean() - judge(fake).mean()) ** 2)
            kept = [p.grad.clone() for p in judge.parameters()]
            for (real,) in batch.shards:
                fake = generator(torch.randn(len(real), 4))
                team.backward(judge(fake).square().mean())
            for parameter, gradient in zip(judge.parameters(), kept, strict=True):
                parameter.grad = gradient
            for optimizer in optimizers:
                optimizer.step()
    return {"state": {**state(generator), **{f"judge {k}": v for k, v in state(judge).items()}}}


def train_unused(length, batch_size, **settings):
    team = lockstep.join(**settings)
    model = SometimesUnused()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Points(length), batch_size))
    without = []
    for batch in loader:
        for inputs, targets, _ in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
        without.append(sorted(name for name, p in model.named_parameters() if p.grad is None))
        optimizer.step()
        optimizer.zero_grad()
    return {"state": state(model), "without": without}


def train_sparse(length, batch_size):
    team = lockstep.join()
    model = nn.Sequential(nn.EmbeddingBag(20, 4, sparse=True), nn.Linear(4, 3))
    optimizers = [torch.optim.SparseAdam(model[0].parameters()), torch.optim.SGD(model[1].parameters(), lr=0.1)]
    words = torch.randint(0, 20, (length, 5), generator=torch.Generator().manual_seed(2))
    data = TensorDataset(words, words[:, 0] % 3)
    model, *optimizers, loader = team.prepare(model, *optimizers, DataLoader(data, batch_size))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return {"state": state(model)}


def train_average(length, batch_size):
    """A moving average of the weights, and one that takes the buffers along."""
    team = lockstep.join()
    model = Net()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(Points(length), batch_size, shuffle=True)
    model, average, optimizer, loader = team.prepare(model, average, optimizer, loader)
    for batch in loader:
        for inputs, targets, _ in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    return {"state": state(average), "updates": int(average.n_averaged)}


def train_thawed(length, batch_size):
    """A layer is frozen for the first epoch."""
    team = lockstep.join()
    model = Plain()
    model.first.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Points(length), batch_size))
    for epoch in team.epochs(3):
        model.first.requires_grad_(epoch > 0)
        for batch in loader:
            for inputs, targets, _ in batch.shards:
                team.backward(functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
    return {"state": state(model)}


def keep_gradients(length, batch_size):
    """Gradients are never cleared: they add up over steps, as in the plain loop."""
    team = lockstep.join()
    model = Plain()
    model, loader = team.prepare(model, DataLoader(Points(length), batch_size))
    for batch in loader:
        for inputs, targets, _ in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
    return {"state": {name: p.grad.double() for name, p in model.named_parameters()}}


def backward_twice(length, batch_size):
    """Two losses through one forward pass, and a second forward pass in the same shard."""
    team = lockstep.join()
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Points(length), batch_size))
    for batch in loader:
        for inputs, targets, _ in batch.shards:
            outputs = model(inputs)
            team.backward(functional.cross_entropy(outputs, targets), retain_graph=True)
            team.backward(outputs.square().mean())
            team.backward(model(inputs + 1).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return {"state": state(model)}


def backward_twice_through_batch_norm(length, batch_size):
    """Two losses through one forward pass that has changed buffers."""
    team = lockstep.join()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Points(length), batch_size))
    for batch in loader:
        for inputs, targets, _ in batch.shards:
            outputs = model(inputs)
            team.backward(functional.cross_entropy(outputs, targets), retain_graph=True)
            team.backward(outputs.square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return {"state": state(model)}


def _loop(kind, length=24, batch_size=8, in_shard=None):
    """The plainest loop, with what else a step may do."""
    team = lockstep.join()
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Points(length), batch_size))
    for batch in loader:
        optimizer.zero_grad()
        for inputs, targets, _ in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            if in_shard is not None:
                in_shard(model, inputs)
        optimizer.step()
        yield model
    yield model


def forward_after_the_backward_pass(length, batch_size):
    """A forward pass with gradients that no backward pass follows."""
    *_, model = _loop(Plain, length, batch_size, lambda model, inputs: model(inputs).sum())
    return {"state": state(model)}


def forward_after_the_backward_pass_with_batch_norm(length, batch_size):
    """The same for a model whose every forward pass changes buffers: those of the next shard begin without it."""
    *_, model = _loop(Net, length, batch_size, lambda model, inputs: model(inputs + 1))
    return {"state": state(model)}


def forward_after_the_update(length, batch_size):
    """A forward pass outside of the shards, with gradients that no backward pass follows."""
    for model in _loop(Plain, length, batch_size):
        model(torch.randn(5, 6)).sum()
    return {"state": state(model)}


def forward_after_the_update_with_batch_norm(length, batch_size):
    """The same for a model whose every forward pass changes buffers: the next step begins with them."""
    for model in _loop(Net, length, batch_size):
        before = model.norm.running_mean.clone()
        model(torch.randn(5, 6))
        assert not torch.equal(model.norm.running_mean, before)
    return {"state": state(model)}


def main_alone_afterwards(length, batch_size):
    """Rank 0 alone runs the model after the loop."""
    *_, model = _loop(Plain, length, batch_size)
    if torch.distributed.get_rank() == 0:
        model(torch.zeros(2, 6)).sum().backward()
    return {"state": state(model)}


class CodeBook(Plain):
    """Writes a buffer through ``.data``, which PyTorch does not count as a change; another is not saved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("book", torch.zeros(8))
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, x):
        if self.training:
            self.book.data.mul_(0.9).add_(self.first(x).detach().mean(0), alpha=0.1)
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.last(torch.tanh(self.first(x) + self.book + self.mean.sum()))


def train_code_book(length, batch_size):
    *_, model = _loop(CodeBook, length, batch_size)
    return {"state": {**state(model), "mean": model.mean.double()}}


class HandNorm(Plain):
    """Batch statistics kept by hand, in native code."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x):
        return self.last(torch.tanh(functional.batch_norm(self.first(x), self.mean, self.var, training=self.training)))


def train_hand_norm(length, batch_size):
    *_, model = _loop(HandNorm, length, batch_size)
    return {"state": state(model)}


def train_shared(length, batch_size):
    """Two prepared models that share a layer."""
    team = lockstep.join()
    one, two = Plain(), Plain()
    two.first = one.first
    optimizer = torch.optim.SGD([*one.parameters(), *two.last.parameters()], lr=0.1)
    one, two, optimizer, loader = team.prepare(one, two, optimizer, DataLoader(Points(length), batch_size))
    for batch in loader:
        optimizer.zero_grad()
        for inputs, targets, _ in batch.shards:
            team.backward(functional.cross_entropy(one(inputs), targets) + functional.cross_entropy(two(inputs), targets))
        optimizer.step()
    return {"state": {**state(one), **{f"two {k}": v for k, v in state(two).items()}}}


def freeze_in_the_shards(length, batch_size):
    """The judge is frozen for the generator's loss, and thawed again."""
    team = lockstep.join()
    generator, judge = nn.Linear(6, 6), Plain()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, judge)]
    generator, judge, *optimizers, loader = team.prepare(
        generator, judge, *optimizers, DataLoader(Points(length), batch_size)
    )
    for batch in loader:
        for inputs, targets, _ in batch.shards:
            fake = generator(inputs)
            team.backward(functional.cross_entropy(judge(fake.detach()), targets))
            judge.requires_grad_(False)
            team.backward(judge(fake).square().mean())
            judge.requires_grad_(True)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return {"state": {**state(generator), **{f"judge {k}": v for k, v in state(judge).items()}}}


def average_of_another_start(length, batch_size):
    """Each rank's average was made from weights of its own."""
    import os

    torch.manual_seed(int(os.environ["RANK"]))
    model = Plain()
    average = torch.optim.swa_utils.AveragedModel(model)
    torch.manual_seed(0)
    team = lockstep.join()
    average = team.prepare(average)
    return {"state": state(average)}
