"""PyTorch's setting for deterministic kernels, from the beginning of a run to its end."""

import pytest
import torch
import torch._inductor.config as compiler

from lockstep._world.kernels import DeterministicKernels, kernels_repeat

pytestmark = pytest.mark.timeout(20)


@pytest.fixture(params=[(False, False), (True, True), (True, False)], ids=str)
def setting(request):
    """Whether the script has set the mode itself, and whether that only warns."""
    mode, warns = request.param
    torch.use_deterministic_algorithms(mode, warn_only=warns)
    yield request.param
    torch.use_deterministic_algorithms(False)


def test_all_that_was_set_for_a_run_is_put_back_the_compilers_mode_too(setting):
    mode, warns = setting
    kernels = DeterministicKernels()
    assert kernels_repeat()
    assert compiler.deterministic
    kernels.put_back()
    assert torch.are_deterministic_algorithms_enabled() is mode
    assert torch.is_deterministic_algorithms_warn_only_enabled() is warns
    assert compiler.deterministic is mode
