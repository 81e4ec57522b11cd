"""What goes wrong in ``faulty_lockstep.py`` and ``faulty_torchrun.py``, called at the same places
of both loops.

A fault is a function, or a name that the model, the optimizer or the dataset know. It happens on
one rank, the *culprit*."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

from faults import calls, dying, ending, hanging, healthy, slow  # noqa: F401 - they register their functions
from faults.loading import Samples, loader_options
from faults.moments import (
    AFTER_STEP,
    AT_STEP,
    AT_THE_END,
    BEFORE_JOINING,
    EACH_BACKWARD,
    EACH_FORWARD,
    EACH_STEP,
    FIRST_FORWARD,
    IN_FORWARD,
    ON_ALL_RANKS,
    shows,
)
from faults.slow import SlowLayer

__all__ = [
    "Net",
    "after_backward",
    "after_step",
    "before_joining",
    "before_loop",
    "data_of",
    "in_forward",
    "loader_options",
    "options_of",
]

_NUM_SAMPLES, _NUM_SLOW = 2400, 48_000
"""The sizes of the dataset. A slow rank needs more samples, since it shows only after a while."""


class Net(nn.Module):
    """A small network, which ``fault`` may make another one than the other ranks have."""

    def __init__(self, fault: str | None) -> None:
        super().__init__()
        self.fault = fault
        width = 24 if fault == "another_width" else 16
        self.body, self.head, self.spare = nn.Linear(8, width), nn.Linear(width, 1), nn.Linear(width, 1)
        if fault == "another_format":
            self.double()
        if fault in ("another_width", "another_format", "unused_layer"):
            shows()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x.to(self.body.weight.dtype)).relu()
        if self.fault == "slow_layer":
            shows()
            features = SlowLayer.apply(features)
        spare = 0.0 if self.fault == "unused_layer" else self.spare(features)
        return self.head(features) + spare


def data_of(name: str, fault: str | None) -> Samples:
    """Returns the dataset."""
    is_slow = name in ("slow_layer", "decode_slowly") or any(
        name in moment for moment in (EACH_FORWARD, EACH_BACKWARD, EACH_STEP)
    )
    return Samples(fault, _NUM_SLOW if is_slow and name != "save_often" else _NUM_SAMPLES)


def options_of(fault: str | None) -> dict[str, float]:
    """Of the optimizer."""
    if fault in ("another_rate", "another_decay"):
        shows()
    return {"lr": 0.02 if fault == "another_rate" else 0.01, "weight_decay": 0.1 if fault == "another_decay" else 0.0}


def before_joining(name: str, culprit: int) -> None:
    """Called on all ranks, before they meet."""
    if name in BEFORE_JOINING and int(os.environ["RANK"]) == culprit:
        shows()
        BEFORE_JOINING[name]()


def before_loop(name: str, culprit: int) -> None:
    """Called on all ranks, before the loop."""
    if name in ON_ALL_RANKS:
        calls.make_groups(culprit)


def in_forward(fault: str | None, step: int) -> None:
    """Called before each forward pass."""
    if fault in IN_FORWARD and step == AT_STEP:
        shows()
        IN_FORWARD[fault]()
    if fault in FIRST_FORWARD and step == 1:
        FIRST_FORWARD[fault]()
    if fault in EACH_FORWARD:
        shows()
        EACH_FORWARD[fault]()


def after_backward(fault: str | None) -> None:
    """Called between each backward pass and the optimizer's step."""
    if fault in EACH_BACKWARD:
        shows()
        EACH_BACKWARD[fault]()


def after_step(name: str, fault: str | None, step: int, model: nn.Module) -> bool:
    """Called at the end of each step; False: leave the loop."""
    if fault in EACH_STEP:
        shows()
        EACH_STEP[fault](step)
    if name in ("train_long", "save_often"):
        time.sleep(0.15)
    if step != AT_STEP:
        return True
    if fault is not None and (fault in AFTER_STEP or name in ON_ALL_RANKS or name in AT_THE_END):
        shows()
    if fault in AFTER_STEP:
        AFTER_STEP[fault]()
    if name in ON_ALL_RANKS:
        ON_ALL_RANKS[name](fault is not None)
    if fault in AT_THE_END:
        AT_THE_END[fault]()
    if fault == "nudge_weights":
        shows()
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
    if fault == "leave_the_loop":
        shows()
    return name not in AT_THE_END and fault != "leave_the_loop"
