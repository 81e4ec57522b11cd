"""Promises of looking at what an object keeps."""

import collections

import pytest
import torch
from torch import nn

from lockstep.tools.verify.diagnosis.state import ObjectState

pytestmark = pytest.mark.timeout(60)


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.layer = nn.Linear(1, 1)
        self.count, self.table = 0, collections.deque([torch.zeros(2)])


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda module: None, []),
        (lambda module: module.mean.add_(1), []),
        (lambda module: module.layer.weight.data.add_(1), []),
        (lambda module: setattr(module, "count", 1), ["count"]),
        (lambda module: module.table[0].add_(1), ["table"]),
        (lambda module: setattr(module, "fresh", torch.ones(1)), ["fresh"]),
    ],
)
def test_what_a_layer_keeps_besides_parameters_and_buffers_is_seen_to_change(change, names):
    module = Keeps()
    watched = ObjectState(module, "layer")
    watched.remember()
    change(module)
    assert watched.changes() == names
