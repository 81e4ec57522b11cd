"""Small trainings of ``test_review``."""

import os

import torch
from bits import bits, state_of
from torch import nn

import lockstep

DATA = torch.randn(24, 6, generator=torch.Generator().manual_seed(5))
BATCHES = list(DATA.split(8))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class OfAllKinds(nn.Module):
    """Complex numbers beside real ones, scalars, and other memory orders."""

    def __init__(self):
        super().__init__()
        self.wave = nn.Parameter(torch.randn(6, 2, dtype=torch.complex64))
        self.scalar = nn.Parameter(torch.tensor(0.5 + 0.25j))
        self.plain = nn.Linear(6, 3)
        self.turned = nn.Parameter(torch.randn(6, 3).t())
        self.wide = nn.Parameter(torch.randn(6, dtype=torch.float64))

    def forward(self, x):
        waves = (x.to(torch.complex64) @ self.wave * self.scalar).abs().sum(1, keepdim=True)
        return self.plain(x) + x @ self.turned.t() + waves + (x.double() @ self.wide).float().unsqueeze(1)


def gradients_beside_autograd():
    team = lockstep.join()
    model = OfAllKinds()
    model(DATA).square().mean().backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model, loader = team.prepare(model, [DATA])
    for batch in loader:
        for x in batch.shards:
            team.backward(model(x).square().mean())
    return {name: (p.grad.clone(), plain[name]) for name, p in model.named_parameters()}


def _prepare(make, batches=BATCHES):
    team = lockstep.join()
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return team, *team.prepare(model, optimizer, batches)


def thaw_between_phases():
    """The usual order of a GAN: the judge learns from the first phase only, in which the maker is
    frozen."""
    team = lockstep.join()
    judge, maker = Two(), nn.Linear(6, 6)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (judge, maker)]
    judge, maker, *optimizers, loader = team.prepare(judge, maker, *optimizers, BATCHES)
    for batch in loader:
        for learner, optimizer in zip((judge, maker), optimizers, strict=True):
            judge.requires_grad_(learner is judge)
            maker.requires_grad_(learner is maker)
            for x in batch.shards:
                gap = judge(x).mean() - judge(maker(x)).mean()
                team.backward(gap**2 if learner is judge else gap)
            optimizer.step()
            assert all((p.grad is None) == (learner is not judge) for p in judge.parameters())
            assert all((p.grad is None) == (learner is not maker) for p in maker.parameters())
            optimizer.zero_grad()
    return state_of(judge, maker)


def other_numbers_of_calls(weighted):
    """The last shard of each step makes three backward calls, shard 1 of step 2 none, the others
    two."""
    team, model, optimizer, loader = _prepare(Two, BATCHES * 2)
    last, none = [float(x[0, 0]) for x in DATA.split(2)[3::4]], float(DATA[10, 0])
    gradients = []
    for batch in loader:
        for x in batch.shards:
            first = float(x[0, 0])
            for _ in range(3 if first in last else 2 if first != none else 0):
                team.backward(model(x).square().mean(), weight=abs(first) if weighted else None)
        gradients.append(bits(model.a.weight.grad))
        optimizer.step()
        optimizer.zero_grad()
    return gradients, state_of(model)


def start_apart():
    """Ranks that begin with other numbers, in memory with gaps, of a dtype that Gloo does not know,
    and an average."""
    torch.manual_seed(int(os.environ["RANK"]))
    average = torch.optim.swa_utils.AveragedModel(nn.Linear(6, 6))
    torch.manual_seed(0)
    team = lockstep.join()
    model = nn.Linear(6, 6)
    model.weight = nn.Parameter(torch.randn(6, 12, generator=torch.Generator().manual_seed(team.rank))[:, ::2])
    model.register_buffer("short", torch.full((3,), team.rank, dtype=torch.int16))
    model, average = team.prepare(model, average)
    return model.weight.tolist(), model.short.tolist(), average.module.weight.tolist()


def clip_without_a_step():
    """The norm and the gradient that is left, of each step."""
    team, model, _, loader = _prepare(Two)
    found = []
    for batch in loader:
        for x in batch.shards:
            team.backward(model(x).square().mean())
        whole = [p.grad.clone() for p in model.parameters()]
        norm = team.clip_grad_norm_(model.parameters(), 0.01)
        found.append((norm.item(), torch.nn.utils.get_total_norm(whole).item()))
        found.append((0.01, torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()))
        model.zero_grad()
    return found
