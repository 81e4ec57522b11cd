"""Tests on the simulated accelerator. ``make simulated`` builds it, and every process loads it;
elsewhere they are skipped."""

import pytest
import torch
from crew import crew

__all__ = ["crew"]


def is_here():
    found = torch.accelerator.current_accelerator()
    return found is not None and found.type == "sim"


@pytest.fixture(autouse=True)
def device():
    """The account that the simulation keeps in this process, begun anew."""
    if not is_here():
        pytest.skip("there is no simulated device: make simulated")
    torch.accelerator.synchronize()
    torch.sim.library.reset()
    return torch.sim.library
