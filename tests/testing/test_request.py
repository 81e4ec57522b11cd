"""What a test asks for is checked before anything starts."""

import threading

import pytest

from lockstep._base.errors import ConfigError, UsageError
from lockstep.testing import same_at
from lockstep.testing._marked import check_sendable, request_of
from lockstep.testing._request import Request

pytestmark = pytest.mark.timeout(10)

WRONG = [
    {"worlds": ()},
    {"worlds": 2},
    {"worlds": "12"},
    {"worlds": (0, 1)},
    {"worlds": (1, True)},
    {"worlds": (1, 1)},
    {"worlds": (2,)},
    {"worlds": (1, 4), "shards": 2},
    {"worlds": (1, 2), "limit_s": 0},
    {"worlds": (1, 2), "limit_s": float("nan")},
    {"worlds": (1, 2), "run_dir": "runs/mine"},
    {"worlds": (1, 2), "trace": "off"},
    {"worlds": (1, 2), "checkpoint_every": 3},
    {"worlds": (1, 2), "stratgy": "ddp"},
    {"worlds": (1, 2), "strategy": "single"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_request_that_makes_no_sense_is_refused_before_anything_starts(wrong):
    with pytest.raises(ConfigError):
        same_at(fn=threading.active_count, **wrong)


def test_killed_runs_are_resumed_on_another_number_of_processes():
    runs = Request(worlds=(1, 2), kill=True).runs()
    assert [(setting.world_size, setting.killed_at, setting.in_last_epoch) for setting in runs] == [
        (1, None, False),
        (2, None, False),
        (1, 2, False),
        (2, 1, True),
    ]
    [alone, *killed] = Request(worlds=(2,), kill=True).runs()
    assert [(setting.killed_at, setting.world_size) for setting in killed] == [(2, 1), (1, 2)]
    assert alone.killed_at is None


def test_the_command_lines_numbers_of_processes_leave_the_shards_as_they_are():
    marked = {"worlds": (1, 2, 4), "kill": True, "precision": "bf16-mixed"}
    asked = request_of((), marked, (1, 2))
    assert (asked.worlds, asked.chosen_shards, asked.kill, asked.settings) == ((1, 2), 4, True, {"precision": "bf16-mixed"})
    assert request_of((), marked, (1, 8)).chosen_shards == 8
    assert request_of(((1, 2),), {}, None).worlds == (1, 2)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2), {}), (((1, 2),), {"worlds": (1, 2)})])
def test_a_marker_without_numbers_of_processes_is_refused(args, kwargs):
    with pytest.raises(ConfigError):
        request_of(args, kwargs, None)


def test_what_acts_on_pytests_own_process_is_no_argument_for_ranks(monkeypatch, request, capsys, tmp_path, record_property):
    check_sendable("tmp_path", tmp_path)
    check_sendable("values", {"lr": 0.1, "names": ["a"]})
    for value in (monkeypatch, request, capsys, record_property, threading.Lock()):
        with pytest.raises(UsageError):
            check_sendable("value", value)
