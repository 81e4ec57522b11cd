"""Promises of the staged copy: it stays as it was while training goes on, and needs new memory only
where shapes are new."""

import weakref

import pytest
import torch

from lockstep._state.checkpoint.staging import Staging

pytestmark = pytest.mark.timeout(20)


class Scaled(torch.Tensor):
    """A tensor of a class of the script."""


def of_inference():
    with torch.inference_mode():
        return torch.randn(3)


def all_kinds():
    """Tensors of every layout that state has."""
    grid = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "plain": grid.clone(),
        "transposed": grid.clone().permute(2, 0, 1),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "every second": grid.clone()[:, ::2],
        "expanded": torch.arange(3.0).expand(4, 3),
        "number": torch.tensor(3),
        "empty": torch.empty(0, 3),
        "half": torch.randn(5).bfloat16(),
        "flags": torch.tensor([True, False]),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negated": torch._neg_view(torch.randn(3)),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "scaled": torch.randn(3).as_subclass(Scaled),
        "from inference": of_inference(),
        "part of another": torch.randn(7)[2:5],
        "large": torch.randn(3, 2_000_001),
    }


def test_a_copy_is_equal_contiguous_and_stays_as_it_was_while_training_goes_on():
    tensors = all_kinds()
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    copies, events = Staging().copy(tensors)
    assert events == []
    for name, tensor in tensors.items():
        if name == "from inference":
            with torch.inference_mode():
                tensor.zero_()
        elif name != "expanded":
            tensor.data.zero_()
        assert torch.equal(copies[name], before[name])
        assert (copies[name].dtype, copies[name].is_contiguous()) == (tensor.dtype, True)
        assert not copies[name].requires_grad


def test_a_default_device_of_the_script_does_not_move_the_copies():
    with torch.device("meta"):
        copies, _ = Staging().copy({"weight": torch.ones(3, device="cpu")})
    assert copies["weight"].tolist() == [1, 1, 1]


def test_the_memory_of_the_copy_before_is_used_again_where_it_fits():
    staging, tensors = Staging(), all_kinds()
    staging.prepare({name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()})
    first = {name: copy.data_ptr() for name, copy in staging.copy(tensors)[0].items()}
    changed = {**tensors, "plain": torch.ones(7), "flags": torch.ones(2)}
    second = staging.copy(changed)[0]
    assert [name for name in first if second[name].data_ptr() != first[name]] == ["plain", "flags"]
    assert all(torch.equal(second[name], changed[name]) for name in changed)


def test_memory_of_what_is_no_longer_there_is_given_back():
    staging = Staging()
    copy = weakref.ref(staging.copy({"gradient": torch.ones(3)})[0]["gradient"])
    assert copy() is not None
    staging.copy({"weight": torch.ones(3)})
    assert copy() is None
