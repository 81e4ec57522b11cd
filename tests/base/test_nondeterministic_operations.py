"""The table of operations without a deterministic kernel: that it is PyTorch's, and that what it
says to write instead has the same results, and kernels."""

import re

import pytest
import torch
from operation_lines import inputs, moved, numbers, run
from refusing import Refusing
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lockstep._base.nondeterministic_operations import OPERATIONS, WAYS, by_name, of_error

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_what_to_write_instead_has_the_same_values_and_gradients(operation):
    values = inputs(operation.name)
    (result, gradients), (other, others) = run(operation.call, values), run(operation.instead, values)
    torch.testing.assert_close(other, result)
    assert len(gradients) == len(others)
    torch.testing.assert_close(others, gradients)
    if ".cpu()" in operation.instead:  # the same kernel
        assert torch.equal(other, result)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_on_a_gpu_the_call_raises_and_what_to_write_instead_does_not(operation):
    values = moved(inputs(operation.name), "meta")
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
    values = moved(values, "meta")
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


def test_what_notes_say_has_a_kernel_does_not_raise():
    values = moved({**inputs("nll_loss2d"), "volume": numbers(2, 3, 4, 4, 4), "bag": numbers(7, 5)}, "meta")
    leaves = [value for value in values.values() if value.requires_grad]
    lines = [
        "F.adaptive_avg_pool2d(logits, 1)",
        "F.adaptive_avg_pool3d(volume, 1)",
        'F.interpolate(logits, scale_factor=2, mode="bilinear")',
        'F.interpolate(volume, scale_factor=2, mode="trilinear")',
        'F.embedding_bag(target.flatten(1), bag, mode="mean")',
        "torch.median(logits)",
        "(logits > 0).long().cumsum(1)",
        'logits.scatter_reduce(1, target[:, None], logits[:, :1], "sum")',
    ]
    with Refusing():
        for line in lines:  # each depends on some of them
            run(f"{line} + sum(x.sum() for x in leaves)", {**values, "leaves": leaves})
