"""A shard of no weight counts for nothing: its loss may be a mean over nothing."""

import pytest
import torch
from crew import crew
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

__all__ = ["crew"]

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


def train_on_tokens():
    """One step on two shards, one of which has no tokens: the gradient, and the mean of the
    losses."""
    team = lockstep.join()
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    inputs, tokens = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    model, loader = team.prepare(model, DataLoader(TensorDataset(inputs, tokens), 4))
    for batch in loader:
        for x, mask in batch.shards:
            loss = (model(x)[:, 0] * mask).sum() / mask.sum()
            team.backward(loss, weight=mask.sum())
            batch.add(loss=loss)
    return model.weight.grad.item(), batch["loss"], loader.averages["loss"]


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("policy", ["stop", "ignore"])
def test_the_mean_over_a_shard_without_tokens_spoils_nothing(crew, nproc, policy):
    for gradient, loss, average in crew(nproc, train_on_tokens, shards=2, on_nan=policy):
        assert gradient == pytest.approx(1.5)
        assert (loss, average) == (pytest.approx(1.5), pytest.approx(1.5))
