"""The table of operations without a deterministic kernel: that it is PyTorch's, and that what it
says to write instead has the same results, and kernels."""

import math
import re

import pytest
import torch
from refusing import Refusing
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lockstep._base.nondeterministic_operations import OPERATIONS, WAYS, by_name, of_error

pytestmark = pytest.mark.timeout(60)


def numbers(*shape):
    return torch.randn(*shape, requires_grad=True)


def inputs(name):
    """What the lines of an operation name."""
    image, volume = numbers(2, 3, 6, 8), numbers(2, 3, 6, 4, 8)
    return {
        "nll_loss2d": lambda: {"logits": image, "target": torch.randint(3, (2, 6, 8))},
        "ctc_loss": lambda: {
            "log_probs": numbers(9, 2, 5),
            "targets": torch.randint(1, 5, (2, 3)),
            "input_lengths": (9, 7),
            "target_lengths": (3, 2),
        },
        "adaptive_avg_pool2d": lambda: {"x": image, "h": 3, "w": 4},
        "adaptive_max_pool2d": lambda: {"x": image, "h": 3, "w": 4},
        "adaptive_avg_pool3d": lambda: {"x": volume, "d": 3, "h": 2, "w": 4},
        "avg_pool3d": lambda: {"x": volume, "k": 2},
        "fractional_max_pool": lambda: {"x": image, "k": 2, "size": (3, 4)},
        "max_unpool": lambda: {
            "x": numbers(2, 3, 3, 4),
            "indices": F.max_pool2d(image, 2, return_indices=True)[1],
            "k": 2,
            "size": (6, 8),
        },
        "reflection_pad": lambda: {"x": image[0], "p": 3},
        "upsample_linear1d": lambda: {"x": numbers(2, 3, 5), "n": 12},
        "upsample_bicubic2d": lambda: {"x": image, "size": (9, 5)},
        "upsample_aa": lambda: {"x": image, "size": (3, 5)},
        "grid_sample": lambda: {"x": image, "grid": torch.rand(2, 5, 5, 2) * 2 - 1},
        "embedding_bag": lambda: {"tokens": torch.randint(7, (4, 3)), "weight": numbers(7, 5)},
        "histc": lambda: {"x": numbers(50), "bins": 5, "low": -1, "high": 1},
        "bincount": lambda: {"x": torch.randint(4, (30,)), "weights": torch.rand(30), "n": 6},
        "median": lambda: {"x": image, "dim": 2},
        "cumsum": lambda: {"x": image, "dim": 1},
        "put_": lambda: {"x": image, "index": torch.tensor([3, 70, 9]), "values": numbers(3)},
        "scatter_reduce": lambda: {
            "x": image,
            "dim": 1,
            "index": torch.randint(3, (2, 3, 6, 8)),
            "src": numbers(2, 3, 6, 8),
        },
    }[name]()


def on_gpu(values):
    return {
        name: value.detach().to("meta").requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def run(line, values):
    """The result of a line of code, and the gradients of its sum's square."""
    torch.manual_seed(3)
    result = eval(line, {"torch": torch, "F": F, "math": math, **values})
    leaves = [value for value in values.values() if isinstance(value, torch.Tensor) and value.requires_grad]
    return result, torch.autograd.grad(result.square().sum(), leaves) if result.requires_grad else ()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_what_to_write_instead_has_the_same_values_and_gradients(operation):
    values = inputs(operation.name)
    (result, gradients), (other, others) = run(operation.call, values), run(operation.instead, values)
    torch.testing.assert_close(other, result)
    assert len(gradients) == len(others)
    torch.testing.assert_close(others, gradients)
    if operation.is_on_cpu:  # the same kernel
        assert torch.equal(other, result)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_on_a_gpu_the_call_raises_and_what_to_write_instead_does_not(operation):
    values = on_gpu(inputs(operation.name))
    with Refusing():
        with pytest.raises(RuntimeError) as caught:
            run(operation.call, values)
        assert of_error(str(caught.value).partition(" does not have")[0]) is operation
        run(operation.instead, values)


# The lines in notes.
NOTES = [
    ("avg_pool3d", "F.local_response_norm(x, 3)", "F.local_response_norm(x.flatten(2), 3).view_as(x)"),
    ("put_", "torch.take(x, torch.tensor([3, 9], device=x.device))", "x.flatten()[torch.tensor([3, 9], device=x.device)]"),
]


@pytest.mark.parametrize(("name", "call", "instead"), NOTES)
def test_what_a_note_proposes_is_the_same_and_has_kernels(name, call, instead):
    values = {"x": numbers(2, 3, 6, 8)}
    torch.testing.assert_close(run(instead, values), run(call, values))
    values = on_gpu(values)
    with Refusing():
        with pytest.raises(RuntimeError):
            run(call, values)
        run(instead, values)


def test_the_table_has_all_that_pytorch_lists():
    text = torch.use_deterministic_algorithms.__doc__
    section = text[text.index("operations will throw a") : text.index("In addition, several operations")]
    listed = set(re.findall(r":(?:class|func):`(torch\.[\w.]+)`", section))
    listed -= {"torch.Tensor.resize_"}  # of quantized tensors
    by_input = {  # no call or layer tells
        "torch.nn.NLLLoss": "nll_loss2d",
        "torch.cumsum": "cumsum",
        "torch.Tensor.put_": "put_",
        "torch.Tensor.scatter_reduce": "scatter_reduce",
    }
    assert len(listed) > 20
    assert listed - by_input.keys() <= WAYS.keys()
    assert all(map(by_name, by_input.values()))


@pytest.mark.parametrize("name", WAYS)
def test_a_way_to_an_operation_exists_and_has_its_argument(name):
    *owners, last = name.split(".")
    found = getattr(nn if owners[1:] == ["nn"] else F if "functional" in owners else torch, last)
    for _, way in WAYS[name]:
        assert callable(found)
        assert not way.argument or way.position >= 0
        if isinstance(found, type) and way.argument:
            assert way.argument in found.__constants__ or way.argument in found.__annotations__


def test_each_operator_whose_kernel_raises_exists():
    for operation in OPERATIONS:
        for kernel in operation.kernels:
            name, _, overload = kernel.partition(".")
            assert (overload or "default") in getattr(torch.ops.aten, name).overloads()
