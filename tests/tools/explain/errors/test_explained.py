"""Errors of one process, raised here by the installed torch."""

import types
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep._tools.explain.errors.explanation import ROWS, explain, explain_error

pytestmark = pytest.mark.timeout(60)


def error_of(act, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        act(*args)
    return caught.value


def words_of(act, *args):
    """The explanation of the error that this raises, as text."""
    return explain_error(error_of(act, *args))


def explained(act, *args):
    """The same in fields."""
    return explain(error_of(act, *args))


def keep_a_state():
    state = torch.ones(2, requires_grad=True).square()
    for _ in range(2):
        state = state.square()
        state.sum().backward()


def test_a_hidden_state_that_was_kept_over_a_step_is_to_be_detached():
    words = words_of(keep_a_state)
    assert "state = state.detach()" in words
    assert "team.per_shard" in words


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda team, loss: team.backward(loss, weigth=2.0), "weight"),
        (lambda team, loss: team.backward(loss, retain_grap=True), "retain_graph"),
        (lambda team, loss: team.evaluate(None, [], metric=[]), "metrics"),
        (lambda team, loss: lockstep.load_weights("none", devise="cpu"), "device"),
    ],
)
def test_a_misspelled_argument_of_a_call_of_lockstep_is_told_with_the_one_that_was_meant(call, meant):
    team = object.__new__(lockstep.Team)
    team._phases = types.SimpleNamespace(backward=lambda loss, weight, reduction, options: loss.backward(**options))
    assert meant in words_of(call, team, torch.ones(1, requires_grad=True).sum())


def test_a_misspelled_argument_of_another_library_is_left_to_its_own_error():
    assert words_of(lambda: torch.ones(1, requires_grad=True).sum().backward(retain_grap=True)) == ""


def test_an_error_underneath_is_explained():
    def step():
        try:
            keep_a_state()
        except RuntimeError as error:
            raise OSError("training failed") from error

    assert explained(step)[::2] == ("a graph used twice", "RuntimeError")

    def clean_up():
        try:
            step()
        finally:
            raise KeyError("clean-up failed too")

    assert explained(clean_up)[::2] == ("a graph used twice", "RuntimeError")
    assert "RuntimeError" in words_of(clean_up)


def test_ctrl_c_and_ends_that_are_meant_are_left_alone():
    for end in (KeyboardInterrupt(), SystemExit(1)):
        end.__context__ = RuntimeError("backward through the graph a second time")
        assert explain_error(end) == ""


def test_objects_that_do_anything_when_they_are_looked_at_do_no_harm():
    class Hostile:
        def __getattribute__(self, name):
            raise SystemError(name)

        def __repr__(self):
            raise SystemError

        __eq__ = __hash__ = __len__ = __bool__ = __repr__

    def step():
        self = hostile = Hostile()
        wild = {1: hostile}
        raise RuntimeError("Expected to have finished reduction in the prior iteration", len(wild), type(self))

    assert explained(step).family == "unused parameters"

    class MuteError(RuntimeError):
        def __str__(self):
            raise SystemError

    assert explain_error(MuteError()) == ""
    cycle = RuntimeError("Connection closed by remote peer")
    cycle.__cause__ = ValueError()
    cycle.__cause__.__cause__ = cycle
    assert explain_error(cycle)


def test_every_family_is_in_the_documentation():
    page = (Path(__file__).parents[4] / "docs" / "error-messages.md").read_text()
    assert {row.family for row in ROWS if f"| {row.family} |" not in page} == set()
