"""What a training leaves behind, taken down so that a single different bit shows."""

import hashlib
from collections.abc import Mapping

import torch

from lockstep._world.comm.dtensors import full_tensor


def bits(value):
    """A value as bytes: -0.0 differs from 0.0, and a NaN is equal to itself."""
    if isinstance(value, torch.Tensor):
        value = full_tensor(value.detach()).cpu()
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return f"{value.dtype} {tuple(value.shape)} ".encode() + hashlib.sha256(data).digest()
    return value.hex() if isinstance(value, float) else repr(value)


def numbers(value):
    """A value as it is, for comparisons up to rounding."""
    return full_tensor(value.detach()).cpu().clone() if isinstance(value, torch.Tensor) else value


def in_numbers(task):
    """What a training returns, with numbers in the place of bits."""
    global _taken
    _taken = numbers
    try:
        return task()
    finally:
        _taken = bits


_taken = bits


def flat(name, value):
    """A state dict, or anything made of dicts and lists, as one flat dict of bits by name."""
    if isinstance(value, Mapping):
        return {key: found for part, item in value.items() for key, found in flat(f"{name}.{part}", item).items()}
    if isinstance(value, (list, tuple)):
        return {key: found for part, item in enumerate(value) for key, found in flat(f"{name}.{part}", item).items()}
    return {name: _taken(value)}


def state_of(*things):
    """All state of models (buffers that are not saved among it), optimizers, schedules, averages
    and scalers."""
    found = {}
    for number, thing in enumerate(things):
        name = f"{number} {type(thing).__name__}"
        found.update(flat(name, thing.state_dict()))
        if isinstance(thing, torch.nn.Module):
            found.update({f"{name}: buffer {key}": _taken(buffer) for key, buffer in thing.named_buffers()})
    return found


class Seen:
    """What one rank sees of a training, by step and samples, so that ranks and world sizes can be
    laid side by side.

    ``disturb``, if it is set, is called in every step on the rank that has the first shard, inside
    its shards. ``last`` is what this process has seen most recently.

    Args:
        team: of the run.
    """

    disturb = None
    last = None

    def __init__(self, team):
        Seen.last = self
        self._team = team
        self.losses = {}
        self.audited = {}
        self.by_step = {}

    def loss(self, samples, loss, phase=0):
        """The loss of a shard, known by its samples. Called inside the shards."""
        key = (self._team.step, phase, *(int(sample) for sample in samples))
        if self._team.in_audit:
            self.audited[key] = bits(loss)
            return
        if Seen.disturb is not None and self._team.rank == 0:
            Seen.disturb(self._team.step)
        assert key not in self.losses
        self.losses[key] = bits(loss)

    def step(self, **values):
        """Values of a step. Called outside of the shards, where every rank has the same ones."""
        self.by_step.setdefault(self._team.step, {}).update(flat("step", values))

    def gradients(self, *models):
        """The gradients of whole steps; None counts too."""
        self.step(gradients=[{name: p.grad for name, p in model.named_parameters()} for model in models])

    def result(self, *things, **more):
        """What a task returns."""
        return {**self.so_far(), "audited": self.audited, "state": state_of(*things), **more}

    def so_far(self):
        """What was seen of each step."""
        return {"losses": self.losses, "by_step": self.by_step}


def differences(one, other):
    """The names under which two flat dicts differ."""
    return sorted(str(name) for name in one.keys() | other.keys() if one.get(name, ...) != other.get(name, ...))


def assert_same_bits(reference, by_rank):
    """One process's result (its only rank's), and those of all ranks of another run."""
    losses = {}
    for rank, result in enumerate(by_rank):
        assert losses.keys().isdisjoint(result["losses"]), "two ranks had the same samples"
        losses.update(result["losses"])
        assert differences(reference["state"], result["state"]) == [], f"state on rank {rank} of {len(by_rank)}"
        assert result["by_step"].keys() == reference["by_step"].keys(), f"steps of rank {rank} of {len(by_rank)}"
        for step, values in result["by_step"].items():
            assert differences(reference["by_step"][step], values) == [], f"step {step} on rank {rank} of {len(by_rank)}"
    assert differences(reference["losses"], losses) == [], f"losses on {len(by_rank)} processes"
