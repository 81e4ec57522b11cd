"""What a Trainer's subclass and callbacks keep comes back as it was, in the containers that the
script has."""

import copy
import types
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest

from lockstep._base.digest import digest

pytestmark = pytest.mark.timeout(60)
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


GROWING = {
    "list": lambda size: [0.5] * size,
    "deque": lambda size: deque([1] * size),
    "tuple": lambda size: (1,) * size,
    "dict": lambda size: dict.fromkeys(range(size), "x"),
    "set": lambda size: set(range(size)),
    "frozenset": lambda size: frozenset(range(size)),
    "ordered": lambda size: OrderedDict.fromkeys(range(size), 1),
    "counter": lambda size: Counter(range(size)),
    "default": lambda size: defaultdict(int, dict.fromkeys(range(size), 1)),
    "array": np.zeros,
    "list in a dict": lambda size: {"losses": [0.5] * size},
    "array in a list": lambda size: [np.zeros(size)],
}


@pytest.mark.parametrize("part", ["of a subclass", "of a subclass, made later", "of a callback"])
@pytest.mark.parametrize("kind", GROWING)
def test_what_was_small_in_the_first_launch_is_saved_in_all_later_ones_however_large(state, kind, part):
    grow, most = GROWING[kind], state.MOST_ITEMS

    class Script:
        """A Trainer or a callback of the script: both have the attribute."""

        def __init__(self):
            self.callback_handler = types.SimpleNamespace(callbacks=[self])

    def start(size):
        script = Script()
        script.data = grow(most + 1)
        if part != "of a subclass, made later":
            script.kept = grow(size)
        parts = {"callbacks": state.CallbackAttributes(script)} if "callback" in part else state.attributes_of(script)
        return script, parts

    def saved(parts):
        return {name: part.state_dict() for name, part in parts.items()}

    def values(states):
        found = states["callbacks"].values() if "callback" in part else states.values()
        return {name: value for each in found for name, value in each.items()}

    script, parts = start(most)
    script.kept = grow(most)
    assert values(saved(parts)).keys() == {"kept"}
    for more in (1, 2, 3):
        script.kept = grow(most + more)
        states = copy.deepcopy(saved(parts))
        assert values(states).keys() == {"kept"}, "a launch that has not kept it so far"
        script, parts = start(0)
        for name, one in parts.items():
            one.load_state_dict(states[name])
        assert digest(script.kept) == digest(grow(most + more))


@pytest.mark.parametrize("kind", GROWING)
def test_what_was_small_when_a_training_began_is_saved_however_large_it_is_at_the_first_checkpoint(state, kind):
    """A later training of a launch may have its first checkpoint after many steps."""
    grow, most = GROWING[kind], state.MOST_ITEMS

    class Trainer:
        pass

    trainer = Trainer()
    trainer.data, trainer.kept = grow(most + 1), grow(0)
    for size in (most + 1, 2 * most):
        parts = state.attributes_of(trainer)
        trainer.kept = grow(size)
        states = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
        assert {key for values in states.values() for key in values} == {"kept"}
        again = Trainer()
        again.data, again.kept = grow(most + 1), grow(0)
        for name, part in state.attributes_of(again).items():
            part.load_state_dict(states[name])
        assert digest(again.kept) == digest(trainer.kept)
        trainer.kept = grow(0)


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
