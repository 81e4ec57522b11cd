"""A training that changes what its model is made of in step 3, in one of many ways."""

import time

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.data import DataLoader

import lockstep


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.spare, self.twin, self.gone = (frozen(nn.Linear(3, 3)) for _ in range(3))
        self.twin.weight = self.spare.weight
        self.act = nn.Identity()
        self.register_buffer("later", None)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        if not hasattr(self, "lazy"):
            self.lazy = nn.ReLU()  # as some layers are made where they are first needed
            self.register_buffer("cache", torch.ones(3))
        if not self.training:
            x = self.bounded(x)
        x = self.act(self.b(self.norm(self.a(x)))) * self.scale * getattr(self.b, "mask", 1)
        x = x + getattr(self, "offset", 0) + (0 if self.later is None else self.later)
        return x + self.twin(x) + (self.extra(x) if hasattr(self, "extra") else 0)

    def bounded(self, x):
        if not hasattr(self, "bounds"):
            self.bounds = nn.Sequential(nn.Hardtanh())
        return self.bounds(x)

    def extend(self):
        self.extra = nn.Tanh()


def evaluate(model):
    model.eval()(torch.ones(2, 3))
    model.train()


class LowRank(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(3, 1, bias=False), nn.Linear(1, 3, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class Offset(nn.Module):
    def forward(self, weight):
        return weight + 0.01


def weight(*, learns=False):
    return nn.Parameter(torch.ones(3, 3), learns)


def frozen(layer):
    return layer.requires_grad_(False)


def parametrize_frozen(model):
    frozen(model.b)
    parametrize.register_parametrization(model.b, "weight", Offset())


RESUMED = {
    "nothing": lambda model: None,
    "a parameter of the same form": lambda model: setattr(model.b, "weight", weight()),
    "a layer of the same form": lambda model: setattr(model, "b", frozen(nn.Linear(3, 3))),
    "swapped": lambda model: torch.utils.swap_tensors(model.spare.weight, weight()),
    "other data": lambda model: setattr(model.b.weight, "data", torch.ones(3, 3)),
    "a buffer set": lambda model: setattr(model, "later", torch.ones(3)),
    "a buffer replaced": lambda model: setattr(model, "scale", torch.full((3,), 0.5)),
    "a buffer of another shape": lambda model: setattr(model, "scale", torch.full((1,), 0.5)),
    "a buffer registered": lambda model: model.register_buffer("offset", torch.ones(3)),
    "a buffer registered in a layer": lambda model: model.b.register_buffer("mask", torch.full((3,), 0.5)),
    "a buffer registered that is not saved": lambda model: model.register_buffer("offset", torch.ones(3), persistent=False),
    "frozen": lambda model: frozen(model.a),
    "a layer that the model makes in its first evaluation": evaluate,
    "evaluating": lambda model: model.norm.eval(),
}
NAMED = {
    "tied": (lambda model: setattr(model.b, "weight", model.a.weight), "`b.weight` is tied to `a.weight`"),
    "untied": (lambda model: setattr(model.twin, "weight", weight()), "`twin.weight` is no longer `spare.weight`"),
    "a layer": (lambda model: setattr(model, "extra", frozen(nn.Linear(3, 3))), "`extra.weight` is new"),
    "a layer without parameters": (lambda model: setattr(model, "extra", nn.Tanh()), "`extra` (Tanh) is new"),
    "a layer that a method of the model makes": (lambda model: model.extend(), "`extra` (Tanh) is new"),
    "a layer exchanged": (lambda model: setattr(model, "act", nn.Tanh()), "`act` is a Tanh, and was a Identity"),
    "a layer with a buffer": (
        lambda model: setattr(model, "extra", nn.BatchNorm1d(3, affine=False)),
        "`extra` (BatchNorm1d)",
    ),
    "a layer removed": (lambda model: delattr(model, "gone"), "`gone.weight` is missing"),
    "parametrized": (parametrize_frozen, "`b.parametrizations.weight.original` is new"),
    "another dtype": (lambda model: model.gone.double(), "`gone.weight` has shape (3, 3), float64"),
}
REFUSED = {
    "replaced": lambda model: setattr(model.b, "weight", weight(learns=True)),
    "weight norm": lambda model: parametrizations.weight_norm(model.b),
    "low rank": lambda model: setattr(model, "b", LowRank(model.b)),
}
KINDS = {**RESUMED, **{kind: change for kind, (change, _) in NAMED.items()}, **REFUSED}


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.005)


def train(kind, dies=False):
    with lockstep.join(shards=2, seed=0) as team:
        model = Net()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
        data = DataLoader(torch.randn(32, 3, generator=torch.Generator().manual_seed(1)), 8, shuffle=True)
        model, optimizer, loader = team.prepare(model, optimizer, data)
        plain = team.unwrap(model)
        for _ in team.epochs(2):
            for batch in loader:
                if team.step == 3:
                    KINDS[kind](plain)
                for x in batch.shards:
                    team.backward((model(x) - 1).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                if dies and team.step == 6:
                    wait_for(team.run_dir / "checkpoints" / "step-00000004")
                    raise ValueError("planted")
        return {name: value.tolist() for name, value in plain.state_dict().items()}
