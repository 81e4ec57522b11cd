"""Models whose parts the script has placed on several devices: what is looked at before they are
prepared."""

import pytest
import torch
from torch import nn

from lockstep._base.errors import ModelError
from lockstep._prepare.checks import check_placed, describe

pytestmark = pytest.mark.timeout(20)
# Nothing is computed on "meta", but it is a device like others to whoever asks where a tensor is.
CPU, OTHER = torch.device("cpu"), torch.device("meta")


def split():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, device=OTHER))


def test_parts_on_devices_of_the_process_are_welcome():
    check_placed(split(), (CPU, OTHER))
    check_placed(nn.Linear(2, 2), (CPU, OTHER))


@pytest.mark.parametrize(
    ("model", "devices", "words"),
    [
        (split(), (CPU, CPU), "'1.weight' .* on meta"),
        (nn.BatchNorm1d(2, affine=False), (OTHER, OTHER), "'running_mean' .* on cpu"),
    ],
)
def test_a_parameter_or_buffer_elsewhere_is_named_with_what_to_do(model, devices, words):
    with pytest.raises(ModelError, match=words) as caught:
        check_placed(model, devices)
    assert "layer.to(team.devices[1])" in str(caught.value)


def test_ranks_that_place_parts_differently_are_told_apart_by_place():
    lines = describe([split()], {}, (CPU, OTHER))
    assert [line.rpartition(", ")[2] for line in lines if "num_batches" not in line] == [
        *["on device 0"] * 2,
        *["on device 1"] * 4,
    ]
    assert describe([split()], {}, (OTHER, CPU)) != lines
    assert not any("on device" in line for line in describe([split()], {}))
