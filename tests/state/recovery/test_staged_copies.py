"""The memory of a copy is made while training continues; the copy waits for it."""

import time

import pytest
import torch

import lockstep
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
