"""Layers of a prepared model that raise an error on a GPU are named before the first step."""

import pytest
import torch
from refusing import Refusing
from torch import nn

from lockstep._joining.startup.refused_layers import refused_layers

pytestmark = pytest.mark.timeout(60)

IMAGE, VOLUME, ROW = (2, 4, 6, 6), (2, 4, 6, 6, 6), (2, 4, 12)
LAYERS = [
    (nn.AdaptiveAvgPool2d(3), IMAGE),
    (nn.AdaptiveAvgPool2d(1), IMAGE),
    (nn.AdaptiveAvgPool2d((1, 1)), IMAGE),
    (nn.AdaptiveAvgPool2d((None, 2)), IMAGE),
    (nn.AdaptiveAvgPool1d(3), ROW),
    (nn.AdaptiveAvgPool1d(1), ROW),
    (nn.AdaptiveAvgPool3d(2), VOLUME),
    (nn.AdaptiveAvgPool3d(1), VOLUME),
    (nn.AdaptiveMaxPool2d(1), IMAGE),
    (nn.AvgPool2d(2), IMAGE),
    (nn.AvgPool3d(2), VOLUME),
    (nn.MaxPool3d(2), VOLUME),
    (nn.FractionalMaxPool2d(2, output_size=3), IMAGE),
    (nn.ReflectionPad1d(1), ROW),
    (nn.ReflectionPad2d(1), IMAGE),
    (nn.ZeroPad2d(1), IMAGE),
    (nn.CircularPad2d(1), IMAGE),
    (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), IMAGE),
    (nn.Conv2d(4, 4, 3, padding=1), IMAGE),
    (nn.Upsample(scale_factor=2), IMAGE),
    (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    (nn.UpsamplingBilinear2d(scale_factor=2), IMAGE),
    (nn.Upsample(scale_factor=2, mode="trilinear"), VOLUME),
    (nn.Upsample(scale_factor=2, mode="bicubic"), IMAGE),
    (nn.Upsample(scale_factor=2, mode="linear"), ROW),
    (nn.PixelShuffle(2), IMAGE),
    (nn.BatchNorm2d(4), IMAGE),
    (nn.LPPool2d(2, 2), IMAGE),
    (nn.LocalResponseNorm(2), IMAGE),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=str)
def test_a_layer_is_named_if_and_only_if_its_pass_raises(layer, shape):
    with Refusing():
        model = nn.Sequential(layer).to("meta")
        x = torch.randn(shape, device="meta", requires_grad=True)
        try:
            model(x).sum().backward()
        except RuntimeError:
            raises = True
        else:
            raises = False
    assert ([name for name, _ in refused_layers(model)] == ["0"]) is raises


def test_a_layer_of_the_script_that_computes_something_else_is_not_named():
    class Mirror(nn.ReflectionPad2d):
        def forward(self, x):
            return x.flip(-1)

    class Kept(nn.ReflectionPad2d):
        pass

    model = nn.ModuleDict({"mirror": Mirror(1), "kept": nn.Sequential(Kept(1))})
    assert [(name, operation.name) for name, operation in refused_layers(model)] == [("kept.0", "reflection_pad")]
