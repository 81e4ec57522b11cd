"""Promises of what is known of a model's structure."""

import pytest
from torch import nn

from lockstep._prepare.structure import named_tensors


class _Named(nn.Module):
    """Tied weights, a buffer twice, and a tensor that is both; or names of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2)
        self.again, self.tied = self.first, nn.Linear(2, 2)
        self.tied.weight = self.first.weight
        self.register_buffer("mean", self.norm.running_mean)
        self.register_buffer("both", self.norm.weight, persistent=False)
        self.register_buffer("none", None)


class _OwnNames(_Named):
    def named_parameters(self, *args, **kwargs):
        return ((f"own.{name}", parameter) for name, parameter in super().named_parameters(*args, **kwargs))


@pytest.mark.parametrize("kind", [_Named, _OwnNames])
def test_one_pass_over_a_model_finds_the_names_that_pytorch_gives(kind):
    model = kind()
    parameters, buffers = named_tensors(model)
    for found, named in ((parameters, model.named_parameters()), (buffers, model.named_buffers())):
        assert [(name, id(tensor)) for name, tensor in found.items()] == [(name, id(tensor)) for name, tensor in named]
