"""A shard of no weight is absent: its loss may be a mean over nothing."""

import math

import pytest
import torch
from crew import crew
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

__all__ = ["crew"]

pytestmark = pytest.mark.timeout(60)


def train_on_tokens():
    """One step on two shards, one of which has no tokens: gradients, and what was logged."""
    team = lockstep.join()
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    inputs, tokens = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    model, loader = team.prepare(model, DataLoader(TensorDataset(inputs, tokens), 4))
    for x, mask in loader:
        loss = (model(x)[:, 0] * mask).sum() / mask.sum()
        team.backward(loss, weight=mask.sum())
        if team.ends_step:
            gradient = model.weight.grad.item()
    return gradient


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("policy", ["stop", "ignore"])
def test_the_mean_over_a_shard_without_tokens_spoils_nothing(crew, nproc, policy):
    for gradient in crew(nproc, train_on_tokens, shards=2, on_nan=policy):
        assert not math.isnan(gradient)
        assert gradient == pytest.approx(1.5)
