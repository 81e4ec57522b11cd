"""``team.state``: what its namespace takes, and what it refuses."""

import copy

import pytest
import torch

import lockstep
from lockstep._base.errors import ConfigError, UsageError
from lockstep._state.script_state import SavedValue, ScriptState


def state_of(**values):
    return ScriptState(values, lambda call: None)


def test_values_are_attributes_that_can_be_read_and_assigned():
    state = state_of(best=0.0, bad=0)
    state.best, state.bad = 0.5, state.bad + 1
    assert (state.best, state.bad) == (0.5, 1)
    assert repr(state) == "state(best=0.5, bad=1)"


def test_a_misspelt_name_is_refused_with_those_that_there_are():
    state = state_of(best=0.0)
    with pytest.raises(AttributeError, match="only best"):
        state.bset = 1.0
    with pytest.raises(AttributeError, match="only best"):
        _ = state.bset
    assert state.best == 0.0


def test_what_a_checkpoint_cannot_hold_is_refused_when_it_is_assigned():
    with pytest.raises(ConfigError, match=r"state\.model"):
        state_of(model=torch.nn.Linear(1, 1))
    state = state_of(history=[])
    with pytest.raises(ConfigError, match=r"state\.history"):
        state.history = [object()]
    assert state.history == []


def test_a_tensor_is_kept_without_its_graph():
    state = state_of(loss=None)
    state.loss = torch.ones(2, requires_grad=True).sum()
    assert not state.loss.requires_grad


def test_a_restored_value_is_seen_through_the_namespace():
    state = state_of(best=0.0, table=torch.zeros(2))
    SavedValue(state, "best").load_state_dict(0.25)
    SavedValue(state, "table").load_state_dict(torch.ones(2))
    assert state.best == 0.25
    assert torch.equal(state.table, torch.ones(2))


def test_a_copy_is_a_state_of_its_own():
    state = state_of(history=[1])
    other = copy.deepcopy(state)
    other.history.append(2)
    assert state.history == [1]


def assign_inside():
    team = lockstep.join(shards=2)
    state = team.state(seen=0)
    model = torch.nn.Linear(1, 1)
    model, loader = team.prepare(model, torch.utils.data.DataLoader(torch.ones(4, 1), 4))
    for batch in loader:
        for inputs in batch.shards:
            team.backward(model(inputs).mean())
            try:
                state.seen += len(inputs)
            except UsageError as error:
                return state.seen, str(error)
    return state.seen, ""


@pytest.mark.quick
def test_an_assignment_inside_a_shard_is_refused(standing_crew):
    [(seen, message)] = standing_crew(1, assign_inside)
    assert seen == 0
    assert "state.seen" in message


def take_names_twice():
    team = lockstep.join(shards=1)
    team.state(best=0.0)
    try:
        team.state(best=1.0)
    except UsageError as error:
        return str(error)
    return ""


def test_a_name_that_is_taken_is_refused(standing_crew):
    [message] = standing_crew(1, take_names_twice)
    assert "'best'" in message
