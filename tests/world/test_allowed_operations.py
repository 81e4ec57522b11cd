"""An operation that a run allows runs without a deterministic kernel, wherever it is called, and
no other does. On the CPU, which refuses two of them itself."""

import threading

import pytest
import torch
from torch import nn

from lockstep._base.config import RunConfig
from lockstep._base.nondeterministic_operations import OPERATIONS
from lockstep._world.allowed_operations import AllowedOperations
from lockstep._world.kernels import DeterministicKernels, check_allowed_operations, kernels_repeat

pytestmark = pytest.mark.timeout(60)


def put():
    return torch.ones(3).put_(torch.tensor([0, 1]), torch.zeros(2))


def unpool():
    return nn.MaxUnpool1d(2)(torch.ones(1, 1, 2), torch.tensor([[[0, 2]]]))


@pytest.fixture
def strict():
    kernels = DeterministicKernels()
    yield
    kernels.put_back()


def test_it_runs_and_others_raise_and_afterwards_it_raises_again(strict):
    allowed = AllowedOperations(["put_"], "CPU")
    try:
        assert put().tolist() == [0, 0, 1]
        assert torch.get_deterministic_debug_mode() == 2
        assert not kernels_repeat()
        with pytest.raises(RuntimeError):
            unpool()
        with pytest.raises(IndexError):  # an error of its own leaves the setting as it was
            torch.ones(3).put_(torch.tensor([7]), torch.zeros(1))
        assert torch.get_deterministic_debug_mode() == 2
    finally:
        allowed.put_back()
    assert kernels_repeat()
    with pytest.raises(RuntimeError):
        put()


def test_it_runs_in_any_thread_and_in_a_backward_pass(strict):
    allowed = AllowedOperations(["put_", "max_unpool"], "CPU")
    try:
        results = []

        def work():
            weights = torch.arange(3.0, requires_grad=True)
            torch.take(weights, torch.tensor([1, 1, 2])).sum().backward()  # whose gradient is a put_
            results.append((weights.grad.tolist(), unpool().tolist()))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert results == [([0, 2, 1], [[[1, 0, 1, 0]]])]
    finally:
        allowed.put_back()


def test_every_operation_of_the_table_can_be_allowed():
    allowed = AllowedOperations([operation.name for operation in OPERATIONS], "CPU")
    try:
        assert nn.functional.avg_pool3d(torch.ones(1, 2, 2, 2, requires_grad=True), 2).requires_grad
    finally:
        allowed.put_back()


@pytest.mark.parametrize(
    ("devices", "code"),
    [
        (("cuda:0",), ""),
        (("cuda:0", "cuda:1"), "nondeterministic-several-devices"),
        (("xpu:0",), "nondeterministic-device"),
        (("cpu",), ""),  # where kernels are deterministic in any case
    ],
)
def test_only_one_cuda_device_in_a_process_can_allow_operations(devices, code):
    config = RunConfig(nondeterministic="ctc_loss,cumsum")
    found = ""
    try:
        check_allowed_operations(config, [torch.device(name) for name in devices])
    except Exception as error:
        found = error.code
    assert found == code
