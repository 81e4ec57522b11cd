"""Promises of the journal, the seam between running and reading."""

import json
import math

import pytest

from lockstep.measure.events import FILE_NAME, EventWriter, read_events

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
def test_a_number_that_is_not_finite_becomes_null_so_that_any_reader_can_read_the_line(tmp_path, writer, number):
    writer.write("step", values={"loss": number, "parts": [1.0, (number,)]})
    line = (tmp_path / FILE_NAME).read_text()
    values = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["values"]
    assert values == {"loss": None, "parts": [1.0, [None]]}


def test_a_directory_without_a_journal_is_said_to_have_none(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_events(tmp_path))
