"""Promises of a stack as reports show it: a deep one is shortened, and the user's own code is never
what is left out."""

import subprocess
import sys

import click
import numpy as np
import pytest
import torch

import lockstep
from lockstep._base.tracebacks.frames import owner
from lockstep._tools.explain import frames


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        (__file__, "user"),
        (lockstep.__file__, "lockstep"),
        (subprocess.__file__, "plumbing"),
        (torch.__file__, "plumbing"),
        (np.__file__, "plumbing"),
        (click.__file__, "library"),
        ("<frozen importlib._bootstrap>", "plumbing"),
    ],
)
def test_whose_code_a_file_is(file, whose):
    assert owner(file) == whose


def stack(*files: str):
    """From the outermost on, as one writes it."""
    return [(file, line, "function") for line, file in reversed(list(enumerate(files)))]


def lines_of(shown):
    return ["..." if frame is None else frame[1] for frame in reversed(shown)]


def test_a_stack_of_few_frames_is_shown_whole():
    assert lines_of(frames.shortened(stack(*["/me/train.py"] * 5))) == [0, 1, 2, 3, 4]
    assert frames.shortened([]) == []


def test_of_a_deep_stack_the_ends_are_shown():
    assert lines_of(frames.shortened(stack(*["/me/train.py"] * 9))) == [0, 1, "...", 6, 7, 8]


def test_the_function_that_called_a_deep_library_is_shown():
    library = subprocess.__file__
    deep = stack(*["/me/train.py"] * 5, *[library] * 6)
    assert lines_of(frames.shortened(deep)) == [0, 1, "...", 3, 4, "...", 8, 9, 10]


def test_a_function_that_a_library_has_called_is_shown():
    deep = stack("/me/train.py", *[torch.__file__] * 5, "/me/model.py", *[torch.__file__] * 5)
    assert lines_of(frames.shortened(deep)) == [0, 1, "...", 6, "...", 9, 10, 11]


def test_the_innermost_frames_are_recorded():
    def deeper(depth):
        return deeper(depth - 1) if depth else frames.stack_of(sys._getframe())

    recorded = deeper(100)
    assert len(recorded) == frames.MOST_FRAMES
    assert {name for _, _, name in recorded} == {"deeper"}


def test_frames_of_libraries_in_a_row_are_counted_by_package_and_users_stay():
    deep = stack(
        "/me/train.py",
        *[torch.__file__] * 3,
        lockstep.__file__,
        "/me/model.py",
        click.__file__,
        "/me/a.py",
        *[subprocess.__file__] * 2,
    )
    shown = frames.folded(deep)
    assert [frame if isinstance(frame, str) else frame[0] for frame in reversed(shown)] == [
        "/me/train.py",
        "... 4 frames of torch, lockstep",
        "/me/model.py",
        click.__file__,
        "/me/a.py",
        subprocess.__file__,
        subprocess.__file__,
    ]
    assert frames.folded([]) == []
