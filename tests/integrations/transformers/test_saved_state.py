"""What a Trainer's subclass and callbacks keep comes back as it was, in the containers that the
script has."""

import copy
import types
from collections import Counter, OrderedDict, defaultdict, deque

import pytest

pytestmark = [pytest.mark.timeout(60), pytest.mark.long]  # it imports transformers
VALUES = {
    "list": [1, 2],
    "deque": deque([1, 2]),
    "dict": {"a": 1},
    "set": {1, 2},
    "counter": Counter("aab"),
    "ordered": OrderedDict(b=1, a=2),
    "default": defaultdict(int, a=1),
    "tuple": (1, 2),
    "number": 3,
    "text": "x",
}
MORE = {
    "list": [1, 2, 3],
    "deque": deque([3]),
    "dict": {"b": 2},
    "set": {3},
    "counter": Counter("b"),
    "ordered": OrderedDict(c=3),
    "default": defaultdict(int, c=3),
    "tuple": (3,),
    "number": 4,
    "text": "y",
}


@pytest.fixture
def state(require_transformers):
    from lockstep.integrations.transformers import _state

    return _state


def owner(values, **more):
    return types.SimpleNamespace(**copy.deepcopy(values), **more)


def test_attributes_come_back_in_the_containers_that_the_script_has(state):
    before, after = owner(VALUES), owner(MORE)
    kept = vars(after).copy()
    attributes = state.Attributes(after, lambda name: True)
    attributes.load_state_dict(state.Attributes(before, lambda name: True).state_dict())
    assert vars(after) == vars(before)
    for name, value in kept.items():
        if isinstance(value, (list, deque, dict, set)):
            assert vars(after)[name] is value, name
            assert vars(before)[name] is not value


def test_what_was_small_is_saved_when_it_has_grown_and_what_was_large_at_first_never(state):
    trainer = owner(VALUES, data=list(range(state.MOST_ITEMS + 1)))
    attributes = state.Attributes(trainer, lambda name: True)
    assert attributes.state_dict().keys() == VALUES.keys()
    trainer.list += trainer.data
    assert attributes.state_dict()["list"] == trainer.list
    resumed = state.Attributes(owner(VALUES), lambda name: True)
    resumed.load_state_dict(attributes.state_dict())
    assert resumed.state_dict()["list"] == trainer.list


def test_times_come_back_into_the_log_and_are_no_part_of_what_ranks_compare(state):
    log = [{"loss": 1.0, "train_runtime": 5.0}, {"eval_loss": 2.0}, {"eval_samples_per_second": 7.0}]
    times = state.Clocks(types.SimpleNamespace(log_history=log)).state_dict()
    without = [{name: value for name, value in entry.items() if not state.is_clock(name)} for entry in log]
    assert without == [{"loss": 1.0}, {"eval_loss": 2.0}, {}]
    restored = types.SimpleNamespace(log_history=without)
    state.Clocks(restored).load_state_dict(times)
    assert restored.log_history == log


def test_the_result_of_a_finished_training_is_that_of_the_launch_that_finished_it(state, tmp_path):
    before, after = owner(VALUES), owner(MORE)
    state.Outcome(tmp_path / "result", [state.Attributes(before, lambda name: True)]).keep()
    state.Outcome(tmp_path / "result", [state.Attributes(after, lambda name: True)]).recall()
    assert vars(after) == vars(before)
