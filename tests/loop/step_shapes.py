"""A script whose steps have drawn shapes: what each shard does, which loops are left, and what the
script does between them. It is the same script on every number of processes."""

import contextlib
import functools
import itertools
import random
from collections import Counter
from typing import NamedTuple

import torch
from codes import refusal_of
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

import lockstep

SHAPES = ("nothing", "add", "backward", "backward, add", "add, backward", "backward, backward, add", "caught", "refused")
"""What a shard does, in this order."""
EQUAL_SHAPES = ("backward, add", "add, backward")
"""The same, for strategies that must run as many backward passes for each shard."""
NEXT = ("phase", "step", "value", "zero_grad", "update", "barrier", "log", "evaluation", "best", "break")
"""The first thing that the script does after a loop that it has left."""
AFTERWARDS = ("pass", "zero_grad", "update", "barrier", "log", "evaluation", "best")
"""The same after the loop over the batches, which was left too."""
WAYS_OUT = [
    *itertools.product(("break", "caught error"), NEXT, ("pass",)),
    *itertools.product(("error", "break"), ("break",), AFTERWARDS[1:]),
    ("error", "", "pass"),
    ("interrupted", "", "pass"),
]
"""How a loop over the shards is left, on each rank in its first shard, and what is done next."""
NAMES = ("mean", "vector", "sum", "count", "large", "table")
NUM_SAMPLES, BATCH_SIZE = 55, 13
"""The last batch of a pass has fewer samples than there are shards."""


class ScriptError(Exception):
    """An error of the script."""


class Shard(NamedTuple):
    """What a micro-batch does."""

    shape: str
    weights: tuple[float, float]
    """Of its first and second backward pass."""
    of_values: float | None
    """The weight that it gives to ``batch.add``."""
    names: tuple[str, ...]


class Step:
    """What a step does. The same on every rank."""

    def __init__(self, seed, turn, *, shapes, may_leave):
        self._seed, self._shapes = f"{seed} {turn}", shapes
        dice = random.Random(self._seed)
        ways_out = random.Random(seed).sample(WAYS_OUT, len(WAYS_OUT))
        leaves = may_leave and turn % 2
        self.way_out, self.next, self.afterwards = ways_out[turn // 2 % len(ways_out)] if leaves else (None, "", "pass")
        """Of the last phase; None: all are whole."""
        num_phases = dice.choice((1, 2, 3) if self.way_out else (0, 1, 1, 2, 3))
        self.weightings = [dice.choice(("samples", "weight", "tensor", "sum")) for _ in range(num_phases)]
        """Of each phase."""
        self.are_paired = [dice.random() < 0.3 for _ in self.weightings]
        """Whether the phase is over the shards of two batches, side by side."""
        self.names = [dice.sample(NAMES, 3) for _ in self.weightings]
        self.evaluates, self.updates, self.leaves_pass = (dice.random() < p for p in (0.2, 0.6, 0.1))
        self.left_out = {number for number in range(4) if dice.random() < 0.3}
        """The batches that an evaluation leaves out."""
        self.worthless = dice.random() < 0.15
        """Whether all values have the weight 0."""
        self.heavy = dice.choice((0, 1, 2))
        """The shard whose weight is not 0, so that the weights of all do not sum to 0."""

    def shard(self, phase, shard, part):
        dice = random.Random(f"{self._seed} {phase} {shard} {part}")
        shape, weights = dice.choice(self._shapes), [dice.choice((0.0, 1.0, 0.75, 3.5)) for _ in range(2)]
        if (shard, part) == (self.heavy, 0):
            weights = [1.0, 0.5]
            shape = "backward, add" if self._shapes == EQUAL_SHAPES else "backward, backward, add"
        names = [name for name in self.names[phase] if dice.random() < 0.7]
        of_values = 0.0 if self.worthless else dice.choice((None, None, 0.0, 2.3))
        return Shard(shape, tuple(weights), of_values, tuple(names))


class Model(nn.Linear):
    """A model with buffers that each pass in training changes."""

    def __init__(self):
        super().__init__(2, 1, bias=False, dtype=torch.float64)
        nn.init.constant_(self.weight, 1.0)
        self.register_buffer("mean", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        y = super().forward(x)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.5).add_(x.mean(0))
                self.calls += 1
        return y


def value_of(name, x):
    """What a micro-batch adds under a name, and how."""
    mean = float(x.mean()) / 7
    match name:
        case "mean":
            return mean, None
        case "vector":
            return x[:, 0] / 7, None
        case "sum":
            return mean * 1e8, "sum"
        case "count":
            return len(x), "sum"
        case "large":
            return 2**53 + len(x), "sum"
        case "table":
            return x.sum(0) / 7, "sum"


class Script:
    """What every rank runs."""

    def __init__(self, team, seed, shapes, *, may_leave):
        dice = torch.Generator().manual_seed(seed)
        self.team = team
        self.step_of = functools.partial(Step, seed, shapes=shapes, may_leave=may_leave)
        model = Model()
        data = TensorDataset(torch.randn(NUM_SAMPLES, 2, generator=dice, dtype=torch.float64))
        self.test_data = DataLoader(data, 15)
        is_fsdp = team.config.strategy == "fsdp"  # which refuses batches of fewer samples than shards
        loaders = [DataLoader(data, BATCH_SIZE, shuffle=True, drop_last=is_fsdp) for _ in range(2)]
        self.model, self.optimizer, *self.loaders = team.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), *loaders
        )
        self.turn = 0
        """The steps that have begun. (``team.step`` goes back after one that is discarded.)"""
        self.seen = []
        """What every rank saw outside of the shards: of each turn and phase."""
        self.afterwards = "pass"
        self.shards = {}
        """What the shards of complete phases did and saw, by turn, phase, shard and part."""

    def note(self, what, *values):
        self.seen.append((self.turn, what, *values))

    def state(self):
        """The step, the gradient and the buffers."""
        return self.team.step, numbers_of(self.model.weight.grad), (*self.model.mean.tolist(), self.model.calls.item())

    def look_at_a_gradient(self):
        """A backward pass of the script itself, between two passes over the data."""
        if self.team.config.strategy == "exact":
            weight = self.model.weight
            kept, weight.grad = weight.grad, None
            weight.sum().backward()
            weight.grad = kept

    def train(self, num_turns):
        for _ in range(4 * num_turns):
            try:
                for batch, other in zip(*self.loaders, strict=True):
                    self.turn += 1
                    leaves_pass = self.take_step(batch, other, self.step_of(self.turn))
                    if leaves_pass or self.turn == num_turns:
                        break
            except ScriptError:
                self.note("error")
            except lockstep.LockstepError as error:
                self.note("refused", error.code)
            try:
                self.go_on(None, self.afterwards)
            except lockstep.LockstepError as error:
                self.note("refused", error.code)
            self.afterwards = "pass"
            self.look_at_a_gradient()
            self.note("end of pass", *self.state(), torch.rand(()).item())
            if self.turn >= num_turns:
                return
        raise AssertionError(f"no progress: {self.seen[-8:]}")

    def take_step(self, batch, other, step):
        """A step. Returns whether the loop over the batches is left."""
        for phase in range(len(step.weightings)):
            is_last = phase == len(step.weightings) - 1
            # each rank must have a shard in which it leaves the loop
            way_out = step.way_out if is_last and batch.num_samples >= self.team.num_shards else None
            mine = {}
            if way_out is not None:
                self.note("leaves", way_out, step.next)
                if way_out in ("error", "interrupted") or step.next == "break":
                    self.afterwards = step.afterwards
            batches = (batch, other) if step.are_paired[phase] else (batch,)
            try:
                self.run_shards(batches, step, phase, way_out, mine)
            except ScriptError:
                if way_out == "error":
                    raise
            if way_out is not None:
                return self.go_on(batch, step.next)
            self.shards.update(mine)
            values = [spelled(each.values) for each in batches]
            self.note("phase", phase, batch.num_samples, values, *self.state(), torch.rand(()).item())
        if step.evaluates:
            self.evaluate(step.left_out)
        if step.updates:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.note("step", self.team.step, step.updates, numbers_of(self.model.weight))
        return step.leaves_pass

    def run_shards(self, batches, step, phase, way_out, mine):
        batch, visits = batches[0], Counter()
        for parts in zip(*(each.shards for each in batches), strict=True):
            x = sum(part for (part,) in parts)
            shard = self.team.shard
            does = step.shard(phase, shard, visits[shard])
            mine[self.turn, phase, shard, visits[shard]] = (x.tolist(), step.weightings[phase], does, torch.rand(()).item())
            visits[shard] += 1
            if way_out is None:
                self.run_shard(batch, x, step.weightings[phase], does)
                continue
            self.run_shard(batch, x, step.weightings[phase], does._replace(shape="backward, add", weights=(1e3, 1e3)))
            if way_out == "break":
                break
            if way_out != "interrupted":
                raise ScriptError
            with self.model.register_full_backward_pre_hook(fail), contextlib.suppress(ScriptError):
                self.backward(x, "sum", None)

    def run_shard(self, batch, x, weighting, does):
        weights = iter(does.weights)
        for act in does.shape.split(", "):
            match act:
                case "backward":
                    self.backward(x, weighting, next(weights))
                case "add":
                    for name in does.names:
                        value, reduction = value_of(name, x)
                        weight = does.of_values if reduction is None else None
                        batch.add(weight=weight, reduction=reduction, **{name: value})
                case "caught":
                    with contextlib.suppress(RuntimeError):
                        self.model(x[:, :1])
                case "refused":
                    for call in (self.optimizer.step, self.model.zero_grad, self.team.barrier):
                        kind, code, _ = refusal_of(call)
                        assert (kind, code) == ("UsageError", "inside-shards")

    def backward(self, x, weighting, weight):
        output = self.model(x)
        match weighting:
            case "samples":
                self.team.backward(output.mean())
            case "sum":
                self.team.backward(output.sum(), reduction="sum")
            case _:
                loss = output.mean() * (1.0 if weight else torch.nan)  # what does not count may be NaN
                self.team.backward(loss, weight if weighting == "weight" else torch.tensor(weight))

    def go_on(self, batch, then):
        """The first thing after a loop that was left."""
        match then:
            case "phase":
                next(iter(batch.shards))
            case "value":
                batch["mean"]
            case "zero_grad":
                self.optimizer.zero_grad()
            case "update":
                self.optimizer.step()
            case "barrier":
                self.team.barrier()
            case "log":
                self.team.log(value=1.0)
            case "evaluation":
                self.evaluate(())
            case "best":
                self.team.best(1.0)
        return then == "break"

    def evaluate(self, left_out):
        with self.team.evaluate(self.model, self.test_data) as evaluation:
            for batch in evaluation:
                if batch.number in left_out:
                    continue
                for (x,) in batch.shards:
                    batch.add(mean=x.mean(), output=self.model(x).mean())
                    for call in (self.optimizer.step, self.optimizer.zero_grad, self.model.zero_grad, self.team.barrier):
                        kind, code, _ = refusal_of(call)
                        assert (kind, code) == ("UsageError", "call-inside-evaluation-shards")
        self.note("evaluated", tuple(left_out), spelled(evaluation.results))


def fail(*_):
    raise ScriptError


def numbers_of(weight):
    if weight is None:
        return None
    whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
    return tuple(whole.flatten().tolist())


def spelled(values):
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in values.items()}


def train(seed, num_turns, shapes=SHAPES, may_leave=False):
    """What this rank saw, and what its shards did."""
    with lockstep.join(checkpoint_every="off", log_every=1) as team:
        script = Script(team, seed, shapes, may_leave=may_leave)
        script.train(num_turns)
        return script.seen, script.shards


def expected_of(micros, num_samples):
    """The gradient and the values of a phase in plain Python, from what its micro-batches did.

    Returns (None, None) if no weight counts, which is an error."""
    gradients, entries = {}, {}
    for samples, weighting, does, _ in micros:
        x = torch.tensor(samples, dtype=torch.float64)
        mean = x.mean(0)
        acts, last = does.shape.split(", "), None
        for call in range(acts.count("backward")):
            last = does.weights[call] if weighting in ("weight", "tensor") else None
            factor = {"samples": len(x) / num_samples, "sum": len(x)}.get(weighting, last)
            gradients.setdefault(call, []).append((factor * mean, factor))
        for name in does.names if "add" in acts else ():
            weight = len(x) if last is None else last
            value, reduction = value_of(name, x)
            given = weight if does.of_values is None else does.of_values
            entries.setdefault(name, []).append((torch.as_tensor(value, dtype=torch.float64), reduction, given))
    is_weighted = any(weighting in ("weight", "tensor") for _, weighting, *_ in micros)
    totals = [sum(factor for _, factor in of_call) if is_weighted else 1.0 for of_call in gradients.values()]
    if 0.0 in totals:
        return None, None
    gradient = sum(sum(g for g, _ in of_call) / total for of_call, total in zip(gradients.values(), totals, strict=True))
    return (gradient if gradients else None), {name: combined(of_name) for name, of_name in entries.items()}


def buffers_of(start, micros, num_samples):
    """The buffers behind a phase in plain Python: of each shard, which all begin alike, the mean by
    samples; integers are those of the first shard. ``micros``: what its micro-batches did, by shard
    and part."""
    by_shard = {}
    for (shard, _), (samples, _, does, _) in sorted(micros.items()):
        x = torch.tensor(samples, dtype=torch.float64)
        mean, calls, size = by_shard.get(shard, (torch.tensor(start[:2], dtype=torch.float64), start[2], 0))
        for _ in range(does.shape.count("backward")):
            mean, calls = 0.5 * mean + x.mean(0), calls + 1
        by_shard[shard] = mean, calls, size + len(x)
    mean = sum(mean * size for mean, _, size in by_shard.values()) / num_samples
    return (*mean.tolist(), by_shard[0][1])


def combined(entries):
    if entries[0][1] == "sum":
        return sum(value for value, *_ in entries)
    total = sum(weight for *_, weight in entries)
    return sum(value.mean() * weight for value, _, weight in entries) / total if total else torch.tensor(torch.nan)
