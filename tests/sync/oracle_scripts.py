"""A training whose every phase is written down: what a model was before it, and after it."""

from dataclasses import dataclass

import torch
from torch import nn

import lockstep
from lockstep._sync import exact
from lockstep._world.comm.dtensors import full_tensor

NORMS = {
    "none": nn.Identity,
    "BatchNorm": lambda: nn.BatchNorm1d(4, momentum=0.3),
    "BatchNorm, momentum=None": lambda: nn.BatchNorm1d(4, momentum=None),
    "InstanceNorm": lambda: nn.InstanceNorm1d(4, momentum=0.3, track_running_stats=True),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training.

    Args:
        shards: V.
        accumulate: global batches of a step.
        sizes: of the global batches.
        phases: for each phase of a step, the kind of each backward call: how a shard counts.
        norm: one of ``NORMS``.
        keeps: whether gradients are kept from step to step.
        in_buckets: whether gradients are exchanged in buckets, as in large models.
        frozen: the steps in which a layer does not learn.
        mixed: whether parameters are of several dtypes, so in several buckets.
        dtype: of all parameters, unless they are mixed.
        uses_all: whether every shard uses all parameters.
    """

    shards: int
    accumulate: int
    sizes: tuple[int, ...]
    phases: tuple[tuple[str, ...], ...]
    norm: str
    keeps: bool
    in_buckets: bool
    frozen: frozenset[int]
    mixed: bool
    uses_all: bool = False
    dtype: torch.dtype = torch.float32


class Model(nn.Module):
    """One parameter is used by some shards only and one by none, unless all are."""

    def __init__(self, case):
        super().__init__()
        self.uses_all = case.uses_all
        dtype = case.dtype
        draw = torch.Generator().manual_seed(7)
        self.norm = NORMS[case.norm]()
        self.first = nn.Parameter(torch.randn(3, 5, generator=draw).to(dtype))
        wide, narrow, waves = (torch.float64, torch.bfloat16, torch.complex64) if case.mixed else [dtype] * 3
        self.wide = nn.Parameter(torch.randn(5, generator=draw).to(wide))
        self.narrow = nn.Parameter(torch.randn(5, generator=draw).to(narrow))
        self.waves = nn.Parameter(torch.randn(5, generator=draw).to(waves))
        self.sometimes = nn.Parameter(torch.randn(5, generator=draw).to(dtype))
        self.never = nn.Parameter(torch.zeros(2, dtype=dtype))
        # Autograd gives these two views of one gradient, and adds to it twice where gradients are
        # kept, as in the plain loop.
        self.has_pair = case.shards > 1
        self.left = nn.Parameter(torch.randn(5, generator=draw).to(dtype))
        self.right = nn.Parameter(torch.randn(5, generator=draw).to(dtype))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.tensor(2**53))
        self.register_buffer("constant", torch.full((2,), 0.1))

    def forward(self, x):
        """One value for each sample."""
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.mean((0, 2)))
            self.count += len(x)
        y = (self.norm(x).to(self.first.dtype) @ self.first).tanh()
        y = y * self.wide * self.narrow * self.waves.abs()
        y = y * ((self.left[:, None] + self.right[:, None])[:, 0] if self.has_pair else self.left * self.right)
        if self.uses_all:
            y = y * (1 + self.never.sum())
        y = (y + self.sometimes if self.uses_all or x[-1, 0, 0] > 0 else y).sum((1, 2))
        return y.real + y.imag if y.is_complex() else y


def batches(sizes):
    """The global batches. The first sample of each has a weight."""
    draw = torch.Generator().manual_seed(3)
    found = [torch.randn(size, 4, 3, generator=draw) for size in sizes]
    for x in found:
        x[0, 0, 0] = 1.0
    return found


def loss_of(model, x, call, kind):
    """The loss of a shard's backward call, and the weight that the script gives it. It may be 0,
    and the loss then NaN."""
    values = model(x) * (call + 1)
    if kind == "weight":
        counts = x[:, 0, 0] > -0.3
        return (values * counts).sum() / counts.sum(), float(counts.sum())
    return (values.sum() if kind == "sum" else values.mean()), None


def state_of(model):
    """The parameters, buffers and present gradients of a model."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    found = {"parameters": dict(model.named_parameters()), "buffers": dict(model.named_buffers()), "gradients": gradients}
    return {
        kind: {name: full_tensor(tensor.detach()).clone() for name, tensor in of_kind.items()}
        for kind, of_kind in found.items()
    }


def train(case, **settings):
    """The state before and after each phase of each step."""
    seen = []
    exact.MAX_SINGLE_MESSAGE_BYTES = 0 if case.in_buckets else 1 << 20
    with lockstep.join(shards=case.shards, accumulate=case.accumulate, checkpoint_every="off", **settings) as team:
        model = Model(case)
        # which strategies allow for parameters of 16 bits, too
        optimizer = (torch.optim.AdamW if case.dtype == torch.bfloat16 else torch.optim.SGD)(model.parameters(), 0.001)
        model, optimizer, loader = team.prepare(model, optimizer, batches(case.sizes))
        for batch in loader:
            model.first.requires_grad_(team.step not in case.frozen)
            for calls in case.phases:
                before = state_of(model)
                for x in batch.shards:
                    for call, kind in enumerate(calls):
                        loss, weight = loss_of(model, x, call, kind)
                        team.backward(loss, weight=weight, reduction="sum" if kind == "sum" else None)
                seen.append((before, state_of(model)))
            optimizer.step()
            if not case.keeps:
                optimizer.zero_grad()
    return seen
