"""A seed that the script sets after ``join`` is one that the run is resumed with, or refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from codes import raises

from lockstep._base.errors import MismatchError
from lockstep._joining.startup.script_seed import ScriptSeed
from lockstep._state.checkpoint.manifest import Manifest
from lockstep._state.recovery.resuming import Checkpoint, Restorer
from lockstep._state.recovery.run_state import RunState

pytestmark = pytest.mark.timeout(20)
OF_THE_RUN = 5
ALONE = SimpleNamespace(all_gather_plain=lambda value: [value])
SEEDS = [None, 0, 7, 8]


@pytest.fixture(autouse=True)
def _own_numbers():
    with torch.random.fork_rng(devices=[]):
        yield


class Start:
    """The start of a launch, whose script sets seeds and prepares. ``birth``: of the checkpoint
    that it resumes from; None: the run is new."""

    def __init__(self, birth=None):
        torch.manual_seed(1)  # as join does, with a seed that follows from the run's
        self.state = RunState()
        self.parts = SimpleNamespace(seed=OF_THE_RUN)
        restorer = None
        if birth is not None:
            checkpoint = Checkpoint(path=Path("here"), manifest=Manifest(step=3, epoch=0, time_s=0.0, birth=birth))
            restorer = Restorer(checkpoint=checkpoint, state=self.state, allow=())
        self._seed = ScriptSeed(ALONE, self.state, SimpleNamespace(parts=self.parts), restorer)

    def prepare(self, seed=None):
        if seed is not None:
            torch.manual_seed(seed)
        self._seed.take()
        return self.state.script_seed, self.parts.seed


@pytest.mark.parametrize("now", SEEDS)
@pytest.mark.parametrize("was", SEEDS)
def test_a_run_goes_on_with_the_seed_that_its_script_has_set_and_with_no_other_or_none(was, now):
    start = Start({"script_seed": was})
    if was != now:
        with raises(MismatchError, "seed-changed"):
            start.prepare(now)
    else:
        assert start.prepare(now) == Start().prepare(now)


@pytest.mark.parametrize("now", SEEDS)
def test_a_checkpoint_that_knows_of_no_seeds_is_resumed_from_with_any(now):
    assert Start({}).prepare(now)[0] == now


@pytest.mark.parametrize("birth", [None, {"script_seed": None}])
def test_without_a_seed_of_the_script_the_runs_is_as_it_was(birth):
    assert Start(birth).prepare() == (None, OF_THE_RUN)


def test_each_seed_of_the_script_makes_another_of_the_run_that_a_checkpoint_can_hold():
    made = [Start().prepare(seed)[1] for seed in (0, 7, 8, 2**64 - 1)]
    assert len({OF_THE_RUN, *made}) == 5
    assert all(0 <= seed < 2**63 for seed in made)
    assert made[1] == Start().prepare(7)[1]


@pytest.mark.parametrize("first", [None, 7])
def test_what_is_set_after_the_first_prepare_is_the_scripts_alone(first):
    start = Start({"script_seed": first})
    known = start.prepare(first)
    assert start.prepare(8) == known
