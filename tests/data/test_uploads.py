"""The order in which steps are asked for, where their samples move to a device ahead. (Moving
itself: tests/simulated.)"""

import itertools

import pytest
import torch

from lockstep._data.uploads import Uploads


@pytest.fixture
def uploads():
    return Uploads(torch.device("cpu"), [])  # where nothing moves


def noted(log, *, fail_at=None):
    for number in itertools.count():
        if number == fail_at:
            raise ValueError("planted")
        if number == 3:
            return
        log.append(f"asked for {number}")
        yield number, [f"samples {number}"]


def test_each_step_is_asked_for_before_the_one_before_it_runs(uploads):
    log = []
    for number, _ in uploads.one_ahead(noted(log)):
        log.append(f"run {number}")
    assert log == ["asked for 0", "asked for 1", "run 0", "asked for 2", "run 1", "run 2"]


def test_an_error_in_fetching_comes_after_the_steps_before_it(uploads):
    steps = uploads.one_ahead(noted([], fail_at=2))
    assert [next(steps)[0], next(steps)[0]] == [0, 1]
    with pytest.raises(ValueError, match="planted"):
        next(steps)


def test_the_upload_of_a_step_is_the_one_that_was_begun_ahead(uploads):
    steps = uploads.one_ahead(noted([]))
    _, data = next(steps)
    assert uploads.of(data) is uploads.of(data)
    assert uploads.of(["others"]) is not uploads.of(["others"])
