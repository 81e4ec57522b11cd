"""Promises of watching a run: only where that is asked for, only as long as it lasts, and nothing of the script's breaks by it.

What is seen is the subject of test_planted_causes.py.
"""

import copy
import random
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep.tools.verify.diagnosis.generators import Generators

pytestmark = pytest.mark.timeout(60)


def who_watches():
    return sys.getprofile() is not None, sys.gettrace() is not None


def train():
    """Who watched inside and after the run, the class of the team, and the output of a copy of the model made meanwhile."""
    team = lockstep.join()
    inputs = torch.linspace(-1, 1, 32).reshape(8, 4)
    plain = torch.nn.Linear(4, 1)
    model, loader = team.prepare(plain, DataLoader(TensorDataset(inputs), 4))
    for batch in loader:
        for (x,) in batch.shards:
            team.backward(model(x).square().mean())
            inside = who_watches()
    average = copy.deepcopy(plain)
    copied = torch.equal(average(inputs), plain(inputs))
    kind = type(team)
    team.close()
    return inside, who_watches(), kind is lockstep.Team, copied


@pytest.mark.parametrize(("level", "watched"), [("off", False), ("steps", False), ("gradient", False), ("calls", True)])
def test_calls_and_lines_are_watched_only_while_a_run_is_traced_for_them(crew, level, watched):
    assert crew(1, train, trace=level, shards=1) == [((watched, watched), (False, False), True, True)]


GENERATORS = {
    "random.Random": (random.Random(4), lambda generator: generator.random()),
    "numpy.random.Generator": (np.random.default_rng(0), lambda generator: generator.normal()),
    "numpy.random.RandomState": (np.random.RandomState(0), lambda generator: generator.normal()),
    "torch.Generator": (torch.Generator(), lambda generator: torch.randn(1, generator=generator)),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_of_any_kind_is_seen_when_it_is_drawn_from(kind):
    generator, draw = GENERATORS[kind]
    watched = Generators()
    watched.find(thoroughly=True)
    assert not list(watched.drawn())
    draw(generator)
    assert list(watched.drawn()) == [generator]
