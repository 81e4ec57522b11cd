"""Promises of the journal, the seam between running and reading."""

import contextlib
import json
import math
import resource

import pytest

from lockstep._events.format import FILE_NAME
from lockstep._events.history import read_events, read_history, read_launches
from lockstep._events.writer import EventWriter

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def writer(tmp_path):
    writer = EventWriter(tmp_path)
    yield writer
    writer.close()


def test_what_is_written_is_read_back_in_order(tmp_path, writer):
    writer.write("start", world_size=2, hosts=["a", "b"])
    writer.write("step", epoch=0, step=1, values={"loss": 0.5})
    start, step = read_events(tmp_path)
    assert (start["event"], start["world_size"], start["hosts"]) == ("start", 2, ["a", "b"])
    assert (step["event"], step["values"]) == ("step", {"loss": 0.5})
    assert start["time_s"] <= step["time_s"]


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = EventWriter(None)
    other.write("start")
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_an_event_can_be_read_while_the_run_goes_on(tmp_path, writer):
    writer.write("start")
    assert [event["event"] for event in read_events(tmp_path)] == ["start"]


def test_a_resumed_run_goes_on_in_the_same_journal(tmp_path, writer):
    writer.write("start", attempt=1)
    again = EventWriter(tmp_path)
    again.write("start", attempt=2)
    again.close()
    assert [event["attempt"] for event in read_events(tmp_path)] == [1, 2]


def test_a_last_line_cut_short_is_left_out(tmp_path, writer):
    writer.write("start")
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"event": "step", "valu')
    assert [event["event"] for event in read_events(tmp_path)] == ["start"]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_becomes_null(tmp_path, writer, number):
    writer.write("step", values={"loss": number, "parts": [1.0, (number,)]})
    line = (tmp_path / FILE_NAME).read_text()
    values = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["values"]
    assert values == {"loss": None, "parts": [1.0, [None]]}


def test_a_directory_without_a_journal_is_said_to_have_none(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_events(tmp_path))


# A disk that is full


@contextlib.contextmanager
def full_disk(num_bytes):
    """No file can grow beyond this size, as if there were no more room for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room_bytes", [0, 1, 30])
def test_what_finds_no_room_waits_and_is_written_whole_and_in_order(tmp_path, writer, capsys, room_bytes):
    writer.write("start")
    with full_disk((tmp_path / FILE_NAME).stat().st_size + room_bytes):
        for step in (1, 2, 3):
            writer.write("step", step=step)
    assert capsys.readouterr().err.count("WARNING") == 1
    assert [event["event"] for event in read_events(tmp_path)] == ["start"]
    writer.write("end", step=3)
    assert [event.get("step") for event in read_events(tmp_path)] == [None, 1, 2, 3, 3]
    with full_disk(0):
        writer.write("step", step=4)
    assert "events.jsonl" in capsys.readouterr().err  # it is told again when it happens again


def test_lines_that_never_found_room_are_told_at_the_end(tmp_path, capsys):
    writer = EventWriter(tmp_path)
    writer.write("start")
    with full_disk((tmp_path / FILE_NAME).stat().st_size + 5):
        writer.write("step", step=1)
        writer.write("step", step=2)
        writer.close()
        writer.close()
    assert "last 2 lines" in capsys.readouterr().err
    again = EventWriter(tmp_path)
    again.write("resume", step=0)
    again.close()
    assert [event["event"] for event in read_events(tmp_path)] == ["start", "resume"]


# A run that was interrupted


def test_a_history_leaves_out_what_was_done_again_and_keeps_what_was_not(tmp_path, writer):
    writer.write("start", attempt=1)
    for step in range(1, 6):
        writer.write("step", step=step, attempt=1)
    writer.write("evaluate", step=4, attempt=1)
    writer.write("epoch", step=5, attempt=1)
    writer.write("checkpoint", step=3)
    writer.write("start", attempt=2)
    writer.write("resume", step=3)
    for step in (4, 5, 6):
        writer.write("step", step=step, attempt=2)
    writer.write("start", attempt=3)
    writer.write("resume", step=5)
    writer.write("step", step=6, attempt=3)
    writer.write("end", step=6, attempt=3)
    found = [(event["event"], event.get("step"), event.get("attempt")) for event in read_history(tmp_path)]
    assert [row for row in found if row[0] == "step"] == [
        ("step", step, attempt) for step, attempt in ((1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3))
    ]
    assert [row[0] for row in found if row[0] != "step"] == [
        "start",
        "checkpoint",
        "start",
        "resume",
        "start",
        "resume",
        "end",
    ]
    assert len(list(read_events(tmp_path))) == len(found) + 5


def test_a_run_that_begins_again_at_its_beginning_has_no_history_before(tmp_path, writer):
    for step in (1, 2):
        writer.write("step", step=step)
    writer.write("resume", step=0, checkpoint=None)
    writer.write("step", step=1)
    assert [event["event"] for event in read_history(tmp_path)] == ["resume", "step"]


def test_launches_are_told_apart_also_where_a_line_was_cut_short(tmp_path, writer):
    writer.write("start", world_size=2)
    for step in range(1, 9):
        writer.write("step", step=step)
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"event": "step", "time_s": 1.0, "step": 9, "val\n[]\n\0\0\n{"event": "strange", "step": 99}\n')
    writer.write("start", world_size=1)
    writer.write("resume", step=6)
    writer.write("step", step=7)
    writer.write("resume", step=4)  # its start was lost
    writer.write("end", step=7)
    first, second, third = read_launches(tmp_path)
    assert (first.start["world_size"], first.last_step, first.counts_until) == (2, 8, 4)
    assert (second.resumed_after, second.last_step, second.last("end")) == (6, 7, None)
    assert (third.start, third.resumed_after, third.counts_until) == ({}, 4, math.inf)


def test_where_even_the_warning_finds_no_room_training_goes_on(tmp_path, writer, monkeypatch):
    with (tmp_path / "log").open("w") as log:
        monkeypatch.setattr("sys.stderr", log)
        with full_disk(0):
            writer.write("step", step=1)
    writer.write("end", step=1)
    assert [event["event"] for event in read_events(tmp_path)] == ["step", "end"]
