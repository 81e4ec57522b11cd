"""Promises of the warnings about a new checkpoint: each cause is named once, and each object that
has one."""

import pytest
import torch
from torch import nn

from lockstep._state.recovery import unresumable
from lockstep._state.recovery.run_state import RunState
from lockstep._state.recovery.unresumable import Unresumable

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def said(monkeypatch):
    """The codes and texts of warnings since it was last cleared."""
    found = []
    monkeypatch.setattr(unresumable, "warn", lambda text, *, code: found.append((code, text)))
    return found


class Keeping(torch.optim.SGD):
    """An optimizer whose steps change something that a checkpoint does not support."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.parts = [Part(), Part()]

    def step(self):
        for part in self.parts:
            part.count += 1


class Part:
    """An object of the script with a state."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_each_object_that_has_changed_is_named_in_the_first_checkpoint_after_that(said):
    state = RunState()
    optimizers = [torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1) for _ in range(3)]
    for optimizer in optimizers:
        state.keep(optimizer)
    warnings, named = Unresumable(state), []
    for step, changed in enumerate([[], [1], [], [0, 2], [1]]):
        for number in changed:
            optimizers[number].add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        warnings.warn(step)
        assert {code for code, _ in said} <= {"prepared-object-changed"}
        named.append([text.split()[0] for _, text in said])
        assert all(f"from step {step} or later" in text for _, text in said)
        said.clear()
    assert named == [[], ["optimizer-2"], [], ["optimizer", "optimizer-3"], []]


@pytest.mark.parametrize("num_registered", [0, 1, 2])
def test_parts_of_an_optimizer_are_missing_unless_all_are_registered(said, num_registered):
    optimizer, state = Keeping([nn.Parameter(torch.zeros(2))]), RunState()
    state.register("optimizer", optimizer)
    for number, part in enumerate(optimizer.parts[:num_registered]):
        state.register(f"part {number}", part)
    warnings = Unresumable(state)
    for step in (1, 2):
        optimizer.step()
        state.part(0, 1)
        warnings.warn(step)
    assert [code for code, _ in said] == ["attribute-not-savable"] * (num_registered < 2)
