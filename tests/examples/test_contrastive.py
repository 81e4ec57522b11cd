"""The loss of the whole batch has the gradient of one device."""

import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lockstep

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def one_step(examples):
    """Weights, data and the gradient of a batch's loss, by two passes over its shards."""
    sys.path.insert(0, str(examples))
    import contrastive

    team = lockstep.join(seed=0)
    model = torch.nn.ModuleDict({"upper": contrastive.make_tower(), "lower": contrastive.make_tower()})
    halves = torch.rand(10, 4, 8), torch.rand(10, 4, 8)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    model, loader = team.prepare(model, DataLoader(TensorDataset(*halves), 10))
    for batch in loader:
        contrastive.pass_back(team, model, batch)
    return weights, halves, [parameter.grad.clone() for parameter in model.parameters()]


def test_the_gradient_is_that_of_one_device_with_the_whole_batch(crew, examples):
    import contrastive

    (weights, halves, gradients), _ = crew(2, one_step, examples, shards=4)
    model = torch.nn.ModuleDict({"upper": contrastive.make_tower(), "lower": contrastive.make_tower()})
    model.load_state_dict(weights)
    contrastive.contrast(contrastive.embed(model, *halves)).backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
