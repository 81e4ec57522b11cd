"""No model of an example uses an operation that PyTorch refuses on a GPU while kernels are
deterministic: one step of each, on the device ``meta``."""

import importlib

import pytest
import torch
from refusing import Refusing
from torch.nn.functional import cross_entropy

pytestmark = pytest.mark.timeout(60)


STEPS = {
    "cifar10": lambda of: cross_entropy(of.make_cnn()(torch.randn(4, 3, 32, 32)), torch.randint(10, (4,))),
    "contrastive": lambda of: of.contrast(
        of.embed({half: of.make_tower() for half in ("upper", "lower")}, *torch.randn(2, 4, 4, 8))
    ),
    "digits": lambda of: cross_entropy(of.make_model()(torch.randn(4, 1, 8, 8)), torch.randint(10, (4,))),
    "gan": lambda of: of.judged(of.make_judge()(of.make_painter()(torch.randn(4, of.NOISE))), True),
    "lora": lambda of: cross_entropy(of.make_model(4)(torch.randn(4, 64)), torch.randint(10, (4,))),
    "resnet": lambda of: cross_entropy(of.make_resnet("resnet18", 10)(torch.randn(2, 3, 64, 64)), torch.randint(10, (2,))),
    "streaming": lambda of: cross_entropy(of.make_model()(torch.randint(20, (4, of.CONTEXT))), torch.randint(20, (4,))),
    "transformer": lambda of: of.mean_loss(of.Writer()(torch.randint(20, (4, 9))), torch.randint(20, (4, 9))),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_an_example_has_deterministic_kernels(examples, name):
    module = importlib.import_module(name)
    with torch.device("meta"), Refusing():
        STEPS[name](module).backward()
