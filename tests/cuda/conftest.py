"""These tests run functions in several processes: see ``crew``."""

import pytest
import torch
from crew import crew as plain_crew
from places import IS_SIMULATED

__all__ = ["plain_crew"]


def without_reports(fn, *args):
    """``fn(*args)``, in which the simulated device must have found no access that nothing orders."""
    result = fn(*args)
    reports = torch.sim.library.reports()
    assert not reports, reports
    return result


@pytest.fixture
def crew(plain_crew):
    """``crew`` of other folders."""
    if not IS_SIMULATED:
        return plain_crew
    return lambda nproc, fn, *args, **settings: plain_crew(nproc, without_reports, fn, *args, **settings)
