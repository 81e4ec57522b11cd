"""These tests run functions in several processes: see ``crew``. A process opens its context on the
GPU once for all that it is asked for, if it stays: seconds for each of a hundred trainings."""

import pytest
import torch
from crew import crew as plain_crew
from crew import standing_crew as plain_standing_crew
from places import IS_SIMULATED

__all__ = ["plain_crew", "plain_standing_crew"]


def without_reports(fn, *args):
    """``fn(*args)``, in which the simulated device must have found no access that nothing
    orders."""
    result = fn(*args)
    reports = torch.sim.library.reports()
    assert not reports, reports
    return result


def watched(crew):
    """``crew``, whose functions fail where the simulated device has found such an access."""
    if not IS_SIMULATED:
        return crew
    return lambda nproc, fn, *args, **settings: crew(nproc, without_reports, fn, *args, **settings)


@pytest.fixture
def crew(plain_crew):
    """``crew`` of other folders, watched."""
    return watched(plain_crew)


@pytest.fixture
def standing_crew(plain_standing_crew):
    """``standing_crew`` of other folders, watched."""
    return watched(plain_standing_crew)
