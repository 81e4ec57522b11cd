"""The loss of the whole batch has the gradient of one device, and gives the same on one process and on two."""

import re

import pytest
import torch
from torch.nn.functional import normalize

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def test_one_and_two_processes_learn_the_same(told_on_one_and_two):
    told, _ = told_on_one_and_two("contrastive.py", "--epochs", "3")
    assert float(re.search(r"digit ([\d.]+)%", told[-1])[1]) > 80


def one_step(examples):
    """The gradient of a batch's loss, by two passes over its shards."""
    import sys

    sys.path.insert(0, str(examples))
    import contrastive

    import lockstep

    team = lockstep.join(seed=0)
    model, views = contrastive.make_model(), torch.rand(12, 2, 8, 8)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    model, loader = team.prepare(model, torch.utils.data.DataLoader(views, 12))
    for batch in loader:
        contrastive.pass_back(team, model, batch)
    return weights, views, [parameter.grad for parameter in model.parameters()]


def test_the_gradient_is_that_of_one_device_with_the_whole_batch(crew, examples):
    import contrastive

    [(weights, views, gradients), *_] = crew(2, one_step, examples, shards=4)
    model = contrastive.make_model()
    model.load_state_dict(weights)
    contrastive.contrast(normalize(model(views.flatten(0, 1)), dim=1).unflatten(0, (12, 2))).backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
