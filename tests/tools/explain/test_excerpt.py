"""What is shown of an error's traceback."""

import json

from torch import nn, rand
from torch.utils.data import DataLoader

from lockstep._base.config import RunConfig
from lockstep._base.tracebacks.excerpt import excerpt, plain_message
from lockstep._data.fetch import from_workers


def fails(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError


class Samples:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise KeyError(f"no label {index}")


def chained():
    try:
        {}["head"]
    except KeyError as error:
        raise RuntimeError("no such head") from error


def repeats(count):
    return repeats(count - 1) if count else {}[""]


def functions_of(error):
    return [line.split()[-1] for line in excerpt(error).splitlines() if line.startswith("  File")]


def test_of_a_bad_setting_only_the_line_that_asks_for_it_is_shown():
    error = fails(lambda: RunConfig(shards=0))
    assert functions_of(error) == ["fails", "<lambda>"]
    assert "config.py" not in excerpt(error)
    assert "..." not in excerpt(error)


def test_an_error_in_a_library_names_the_place_in_one_line():
    error = fails(nn.Linear(3, 2), rand(1, 2))
    *_, last = excerpt(error).splitlines()
    assert functions_of(error) == ["fails"]
    assert "torch/nn/modules/linear.py:" in last
    assert "LOCKSTEP_TRACEBACK=full" in last
    assert "json/decoder.py:" in excerpt(fails(json.loads, "{"))


def test_where_a_line_of_the_script_raises_it_is_pointed_at_as_by_python():
    assert excerpt(fails(repeats, 0)).splitlines()[-1].strip(" ~^") == ""


def test_causes_are_shown_with_their_frames_and_a_message_that_was_said_is_not_repeated():
    error = fails(chained)
    assert functions_of(error) == ["fails", "chained", "chained"]
    assert "\ncaused by KeyError: 'head'\n" in excerpt(error)
    error.args = ("no such head: 'head'",)
    assert "\ncaused by KeyError\n" in excerpt(error)


def test_an_error_of_a_loaders_worker_is_shown_with_the_lines_of_the_data_set():
    error = fails(list, from_workers(DataLoader(Samples(), num_workers=1)))
    assert plain_message(error) == "'no label 0' (in DataLoader worker process 0)"
    assert functions_of(error) == ["fails", "__getitem__"]
    [cause] = [line for line in excerpt(error).splitlines() if line.startswith("caused ")]
    assert "worker process 0" in cause
    assert cause.endswith("KeyError")
    assert excerpt(error).count("no label") == 1  # the line that raises it


def test_a_deep_recursion_is_shown_in_part():
    assert len(functions_of(fails(repeats, 400))) == 20


def test_an_error_without_a_frame_of_the_users_has_no_excerpt():
    assert excerpt(ValueError("never raised")) == ""
