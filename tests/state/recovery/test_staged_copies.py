"""The first checkpoint is rehearsed in the first steps: its memory is made while training
continues, and what it could not hold is an error."""

import time

import pytest
import torch

import lockstep
from lockstep import ConfigError
from lockstep._state.checkpoint.staging import Staging

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


def save_while_memory_is_made():
    """What the copy of the first step and the making of its memory do, in order."""
    seen, prepare, copy = [], Staging.prepare, Staging.copy

    def slow_prepare(*args):
        time.sleep(0.5)
        prepare(*args)
        seen.append("made")

    def noted_copy(*args):
        seen.append("copied")
        return copy(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Staging, "prepare", slow_prepare)
        patch.setattr(Staging, "copy", noted_copy)
        with lockstep.join(checkpoint_every=1) as team:
            model, loader = team.prepare(torch.nn.Linear(2, 1), [torch.ones(2, 2)])
            for batch in loader:
                for x in batch.shards:
                    team.backward(model(x).mean())
    return seen[:2]


def test_a_copy_waits_for_its_memory(standing_crew):
    assert standing_crew(1, save_while_memory_is_made) == [["made", "copied"]]


class Refused:
    """An object of the script with a state that no checkpoint can hold."""

    def state_dict(self):
        return {"value": object()}

    def load_state_dict(self, state):
        raise AssertionError


def train_with_what_cannot_be_saved():
    """The steps of a run without a checkpoint before it ends, and the code of its error."""
    steps = 0
    try:
        with lockstep.join(checkpoint_every="1h") as team:
            model, loader = team.prepare(torch.nn.Linear(2, 1), torch.ones(100, 1, 2).unbind())
            team.register("refused", Refused())
            for batch in loader:
                for x in batch.shards:
                    team.backward(model(x).mean())
                steps += 1
    except ConfigError as error:
        return steps, error.code


def test_a_checkpoint_that_would_fail_is_an_error_long_before_it_is_due(standing_crew):
    [(steps, code)] = standing_crew(1, train_with_what_cannot_be_saved)
    assert code == "value-not-savable"
    assert steps <= 12
