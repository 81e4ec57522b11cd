"""Whether a loss is a sum is seen by its graph."""

import pytest
import torch
from torch.nn import functional

from lockstep._loop.refusals import is_sum, may_be_sum


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (lambda output: output.square().mean(), ""),
        (lambda output: output.square().sum(), "sum"),
        (lambda output: functional.mse_loss(output, torch.ones_like(output), reduction="sum"), "sum"),
        (lambda output: torch.stack([row.square().mean() for row in output]).sum(), "perhaps"),
        (lambda output: torch.stack([(output - task).square().mean() for task in range(3)]).sum(), "perhaps"),
        (lambda output: torch.stack([(output - task).square().mean() for task in range(4)]).sum(), ""),
    ],
)
def test_a_sum_over_stacked_losses_may_be_over_samples_and_any_other_is(loss, kind):
    loss = loss(torch.ones(3, 2, requires_grad=True))
    assert (is_sum(loss, 3), may_be_sum(loss, 3)) == (kind == "sum", kind == "perhaps")


@pytest.mark.parametrize("of", [torch.Tensor.sum, lambda squares: torch.stack([squares.mean()]).sum()])
def test_the_sum_over_one_sample_is_its_mean(of):
    loss = of(torch.ones(1, 2, requires_grad=True).square())
    assert not is_sum(loss, 1)
    assert not may_be_sum(loss, 1)
