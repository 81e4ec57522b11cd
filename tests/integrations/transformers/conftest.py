"""Fixtures of the tests of transformers' Trainer."""

import importlib.util

import pytest
from crew import crew, standing_crew
from trainer_calls import call

__all__ = ["crew", "standing_crew"]
NEEDED = ("transformers", "accelerate", "datasets", "peft", "tensorboard")


@pytest.fixture
def require_transformers(require):
    for name in NEEDED:
        missing = None if importlib.util.find_spec(name) else f"{name} is not installed (pip install {name})"
        require("transformers", missing)


@pytest.fixture
def there(require_transformers, standing_crew):
    """``there(nproc, "module.function", *args)``: what it returns in each process of a crew that
    has transformers, by rank."""

    def run(nproc, name, *args):
        return standing_crew(nproc, call, *name.split("."), *args)

    return run


@pytest.fixture(scope="session")
def results():
    """Of the features: (feature, number of processes) -> what ``train`` returned."""
    return {}
