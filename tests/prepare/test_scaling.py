"""Scaled gradients are unscaled once, and after an overflow just the step that would use it is
skipped."""

import math

import pytest
import torch
from torch import nn

from lockstep._prepare.scaling import LossScaling

pytestmark = pytest.mark.timeout(20)


class Scaled:
    """Two parameters, each with an optimizer whose step subtracts its gradient."""

    def __init__(self):
        self.scaling = LossScaling("cpu")
        self.parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        self.optimizers = [torch.optim.SGD([parameter], 1.0) for parameter in self.parameters]
        for optimizer in self.optimizers:
            self.scaling.attach(optimizer)

    def phase(self, *gradients):
        """A phase that adds these gradients."""
        carried = {parameter: parameter.grad for parameter in self.parameters if parameter.grad is not None}
        self.scaling.begin_phase(carried)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = self.scaling.scale(torch.tensor([gradient]))
        self.scaling.unscale(self.parameters)
        for parameter, earlier in carried.items():
            parameter.grad += earlier

    def step(self):
        """A step of each optimizer. Returns how it has changed its parameter."""
        before = [parameter.item() for parameter in self.parameters]
        for optimizer in self.optimizers:
            optimizer.step()
        return [parameter.item() - was for parameter, was in zip(self.parameters, before, strict=True)]

    def clear(self, *, set_to_none):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)


def test_gradients_are_unscaled_once_although_models_and_optimizers_have_them():
    run = Scaled()
    run.phase(2.0, 3.0)
    run.phase(0.5, 0.25)
    assert [parameter.grad.item() for parameter in run.parameters] == [2.5, 3.25]
    assert run.step() == [-2.5, -3.25]


@pytest.mark.parametrize("overflow", [math.inf, math.nan])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_after_an_overflow_one_step_of_its_optimizer_is_skipped(overflow, set_to_none):
    run = Scaled()
    run.phase(overflow, 3.0)
    assert run.step() == [0.0, -3.0]
    run.clear(set_to_none=set_to_none)
    run.phase(2.0, 1.0)
    assert run.step() == [-2.0, -1.0]


def test_an_overflow_stays_while_its_gradient_does():
    run = Scaled()
    run.phase(math.inf, 3.0)
    run.phase(2.0, 1.0)
    assert run.step() == [0.0, -4.0]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_an_overflow_that_was_cleared_skips_no_step(set_to_none):
    run = Scaled()
    run.phase(math.inf, 3.0)
    run.clear(set_to_none=set_to_none)
    run.phase(2.0, 1.0)
    assert run.step() == [-2.0, -1.0]


def test_the_overflows_after_a_resume_are_those_that_were_saved():
    saved, run = Scaled(), Scaled()
    saved.phase(1.0, math.inf)
    run.phase(math.inf, 1.0)
    scales = [each.scaling.scaler.get_scale() for each in (saved, run)]
    run.scaling.load_state_dict(saved.scaling.state_dict())
    for parameter in run.parameters:
        parameter.grad = torch.ones(1)
    assert run.step() == [-1.0, 0.0]
    assert run.scaling.scaler.get_scale() == scales[0]


def test_the_scale_shrinks_after_an_overflow_and_grows_after_many_phases_without_one():
    run = Scaled()
    first = run.scaling.scaler.get_scale()
    run.phase(math.inf, 1.0)
    assert run.scaling.scaler.get_scale() == first / 2
    run.clear(set_to_none=True)
    for _ in range(run.scaling.scaler.get_growth_interval()):
        run.phase(0.0, 0.0)
    assert run.scaling.scaler.get_scale() == first
