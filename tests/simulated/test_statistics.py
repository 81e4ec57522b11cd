"""Statistics of layers that a script moves to other devices after they were prepared."""

import pytest
import torch
from torch import nn

from lockstep._sync.buffers import ShardBuffers, add_changes

pytestmark = pytest.mark.timeout(120)


def train(place):
    """Three steps of two shards; the layers are moved after the first."""
    layers, buffers = nn.Sequential(*[nn.BatchNorm1d(2) for _ in range(3)]), ShardBuffers()
    layers[2].eval()
    buffers.attach(layers)
    for step in range(3):
        if step == 1:
            place(layers)
        buffers.begin_phase(2)
        changes = {}
        for shard in range(2):
            for layer in layers:
                layer(torch.arange(8.0).view(4, 2).add(shard).to(layer.weight.device))
            with buffers.restored_after():  # as a checkpointed layer
                layers[1](torch.ones(4, 2, device=layers[1].weight.device))
            add_changes(changes, buffers.take_changes(0.5, is_lowest_shard=shard == 0))
            buffers.rewind()
        buffers.apply(changes)
    return [(buffer.device, buffer.tolist()) for buffer in layers.buffers()]


@pytest.mark.parametrize("moved", [[0], [1], [2], [1, 2], [0, 1, 2]])
def test_layers_that_are_moved_go_on_where_they_are(moved):
    def place(layers):
        for number in moved:
            layers[number].to("sim")

    found, expected = train(place), train(lambda layers: None)
    assert [values for _, values in found] == [values for _, values in expected]
    assert [device.type == "sim" for device, _ in found[::3]] == [number in moved for number in range(3)]
