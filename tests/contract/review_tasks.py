"""Small trainings of ``test_review``."""

import pickle

import torch
from bits import state_of
from torch import nn
from torch.nn import functional

import lockstep
from lockstep.prepare import handover

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
    for x in loader:
        team.backward(model(x).square().mean())
    return {name: (p.grad.clone(), plain[name]) for name, p in model.named_parameters()}


def _prepare(make, batches=BATCHES):
    team = lockstep.join()
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return team, *team.prepare(model, optimizer, batches)


def thaw_in_the_body():
    """The usual order of a GAN: the judge learns from the first loss only."""
    team = lockstep.join()
    judge, maker = Two(), nn.Linear(6, 6)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (judge, maker)]
    judge, maker, *optimizers, loader = team.prepare(judge, maker, *optimizers, BATCHES)
    for x in loader:
        made = maker(x)
        judge.requires_grad_(True)
        team.backward((judge(x).mean() - judge(made.detach()).mean()) ** 2)
        judge.requires_grad_(False)
        team.backward(judge(made).square().mean())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return state_of(judge, maker)


def thaw_at_a_step():
    def half_frozen():
        model = Two()
        model.a.requires_grad_(False)
        return model

    team, model, optimizer, loader = _prepare(half_frozen, BATCHES * 2)
    for x in loader:
        if team.step == 3:
            model.a.requires_grad_(True)
        team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return state_of(model)


def late_parameter():
    team, model, optimizer, loader = _prepare(Two)
    model.c = nn.Linear(3, 3)
    optimizer.add_param_group({"params": list(model.c.parameters())})
    for x in loader:
        team.backward(model.c(model(x)).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def optimizer_in_backward():
    team, model, optimizer, loader = _prepare(Two)
    model.a.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    for x in loader:
        team.backward(model(x).square().mean())


class Growing(Two):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(1))

    def forward(self, x):
        self.cache = torch.zeros(len(self.cache) + 1)
        return super().forward(x)


def growing_buffer():
    team, model, _, loader = _prepare(Growing)
    for x in loader:
        team.backward(model(x).square().mean())


def third_call_in_the_last_turn():
    team, model, _, loader = _prepare(Two)
    for x in loader:
        for _ in range(3 if team.ends_step else 2):
            team.backward(model(x).square().mean())


class Minimum(Two):
    def __init__(self):
        super().__init__()
        self.register_buffer("lowest", torch.tensor(float("inf")))

    def forward(self, x):
        if self.training:
            self.lowest = torch.minimum(self.lowest, x.detach().min())
        return super().forward(x)


def running_minimum():
    team, model, _, loader = _prepare(Minimum, [torch.full((8, 6), -2.5)])
    for x in loader:
        team.backward(model(x).square().mean())
    return model.lowest.item()


def start_apart():
    """Ranks that begin with other numbers, in memory with gaps, of a dtype that Gloo does not know."""
    team = lockstep.join()
    model = nn.Linear(6, 6)
    torch.manual_seed(team.rank)
    model.weight = nn.Parameter(torch.randn(6, 12)[:, ::2])
    model.register_buffer("short", torch.full((3,), team.rank, dtype=torch.int16))
    model = team.prepare(model)
    return model.weight.tolist(), model.short.tolist()


def handover_bytes(layers):
    team, model, _, loader = _prepare(lambda: nn.Sequential(*(nn.Linear(6, 6) for _ in range(layers))))
    for x in loader:
        team.backward(model(x).square().mean())
    return len(pickle.dumps(handover.state_of(team.unwrap(model))))


def any_after_a_break():
    team, model, _, loader = _prepare(Two)
    said = []
    for first in (True, False):
        for x in loader:
            team.backward(functional.mse_loss(model(x), torch.zeros(len(x), 3)))
            answer = team.any(first)
            if first:
                break
            if team.ends_step:
                said.append(answer)
                break
    return said


def clip_without_a_step():
    team, model, _, loader = _prepare(Two)
    for x in loader:
        team.backward(model(x).square().mean())
        team.clip_grad_norm_(model.parameters(), 1.0)
