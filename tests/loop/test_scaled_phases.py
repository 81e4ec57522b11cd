"""Where losses are scaled, the script finds true gradients behind each phase, whatever earlier
phases have left there, and an overflow skips the step that would use it and no other."""

import itertools
import math

import pytest
import torch
from one_process import Process

from lockstep._prepare.scaling import LossScaling

pytestmark = pytest.mark.timeout(30)
STRATEGIES = pytest.mark.parametrize("strategy", ["exact", "single"])
NUM_STEPS, NUM_SAMPLES = 4, 5
OVERFLOWS = ((None, True), (0, False), (1, True), (5, False))
"""The phase that overflows, counted over all steps, and how gradients are cleared."""


class Scaled(Process):
    """A process that scales its losses, with an optimizer whose step subtracts the gradient."""

    def __init__(self, strategy, num_shards, accumulate=1):
        super().__init__((num_shards,), strategy, accumulate=accumulate, scaling=LossScaling("cpu"))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1.0)
        self.phases.trained.add_optimizer(self.optimizer)

    def train(self, batch, overflows=False):
        """A phase, whose last micro-batch may overflow."""
        for number, x in enumerate(batch.shards, 1):
            self.backward(x * (1e37 if overflows and number == len(batch.data) else 1.0))

    @property
    def scale(self):
        return self.phases.trained.scaling.scaler.get_scale()


@STRATEGIES
@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("num_phases", "every"), [(1, 2), (2, 1), (2, NUM_STEPS)])
def test_gradients_add_up_until_they_are_cleared(strategy, num_shards, accumulate, num_phases, every):
    """``every``: the steps after which the optimizer steps and gradients are cleared."""
    for overflow, set_to_none in OVERFLOWS:
        process = Scaled(strategy, num_shards, accumulate)
        first_scale, phase = process.scale, itertools.count()
        weight, gradient = 1.0, 0.0
        for step in range(1, NUM_STEPS + 1):
            batch = process.batch(NUM_SAMPLES, first=100.0 * step)
            for _ in range(num_phases):
                overflows = next(phase) == overflow
                process.train(batch, overflows)
                gradient += math.inf if overflows else 100.0 * step + (accumulate * NUM_SAMPLES - 1) / 2
                assert process.gradient == pytest.approx(gradient, rel=1e-6)
            process.phases.end_step()
            if step % every == 0:
                process.optimizer.step()
                process.optimizer.zero_grad(set_to_none=set_to_none)
                weight, gradient = weight - (gradient if math.isfinite(gradient) else 0.0), 0.0
                assert process.model.weight.item() == pytest.approx(weight, rel=1e-6)
        has_overflowed = overflow is not None and overflow < NUM_STEPS * num_phases
        assert process.scale == first_scale / (2 if has_overflowed else 1)


@STRATEGIES
@pytest.mark.parametrize("num_done", [0, 1, 2])
def test_a_phase_that_is_left_leaves_true_gradients_as_they_were(strategy, num_done):
    process = Scaled(strategy, 3)
    process.train(process.batch(4))
    process.phases.end_step()
    for number, x in enumerate(process.batch(4, first=100.0).shards):
        if number == num_done:
            break
        process.backward(x)
    process.phases.leave_step(failed=True)
    assert process.gradient == 1.5
    process.train(process.batch(4))
    assert process.gradient == pytest.approx(3.0)


@STRATEGIES
@pytest.mark.parametrize("set_to_none", [True, False])
def test_an_overflow_that_was_cleared_skips_no_later_step(strategy, set_to_none):
    process = Scaled(strategy, 2)
    batch = process.batch(4)
    process.train(batch, overflows=True)
    process.optimizer.zero_grad(set_to_none=set_to_none)
    process.train(batch)
    process.phases.end_step()
    process.optimizer.step()
    assert process.model.weight.item() == 1.0 - 1.5
