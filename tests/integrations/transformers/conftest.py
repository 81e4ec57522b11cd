"""Fixtures of the tests of transformers' Trainer."""

import pytest
from crew import crew, standing_crew

__all__ = ["crew", "standing_crew"]


@pytest.fixture(scope="session")
def results():
    """Of the features: (feature, number of processes) -> what ``train`` returned."""
    return {}
