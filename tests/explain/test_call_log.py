"""What one process logs of its calls, and another reads."""

import os
import signal
import threading

import pytest

from lockstep.tools.explain import call_log
from lockstep.tools.explain.call_log import Call, CallLog, CallReader, Group, Line

GROUP = Group("0", 1, (0, 1))
LINE = Line("train.py:5 in f", is_own=False)


def call(shape=(4,), dtype="float32"):
    return Call("all_reduce", dtype, shape, "SUM", None)


@pytest.fixture(params=["a file", "memory"])
def path(tmp_path, request):
    memory = call_log.offer_memory(tmp_path, [0]) if request.param == "memory" else []
    yield call_log.log_path(tmp_path, 0)
    for descriptor in memory:
        os.close(descriptor)


def note(log, number, what=None):
    group, what, line = (log.number_of(each, lambda each=each: each) for each in (GROUP, what or call(), LINE))
    log.note(group, number + 1, number, what, line)


def test_what_was_written_is_read_once_and_in_order(path):
    log, reader = CallLog(path), CallReader(path)
    assert reader.read() == []
    for number in range(3):
        note(log, number, call((number,)))
    note(log, 3)
    calls = reader.read()
    assert [(each.number, each.call.shape) for each in calls] == [(0, (0,)), (1, (1,)), (2, (2,)), (3, (4,))]
    assert (calls[0].group, calls[0].line) == (GROUP, LINE)
    assert reader.read() == []


def test_of_more_calls_than_the_log_holds_the_newest_are_read(path):
    log, reader, count = CallLog(path), CallReader(path), 5 * call_log._RING // 2
    for number in range(count):
        note(log, number)
    numbers = [each.number for each in reader.read()]
    assert numbers == list(range(count - len(numbers), count))
    assert len(numbers) >= call_log._RING // 2
    note(log, count)
    assert [(each.place, each.number) for each in reader.read()] == [(count + 1, count)]


def test_a_reader_beside_a_busy_writer_reads_nothing_wrong(path):
    log, reader = CallLog(path), CallReader(path)
    shapes = [(size,) for size in range(7)]

    def write():
        for number in range(50_000):
            note(log, number, call(shapes[number % 7]))

    writer = threading.Thread(target=write)
    writer.start()
    read = []
    while writer.is_alive():
        read += reader.read()
    writer.join()
    read += reader.read()
    assert read[-1].number == 49_999
    assert all(each.call.shape == shapes[each.number % 7] for each in read)
    assert [each.number for each in read] == sorted({each.number for each in read})


def test_of_too_many_different_calls_the_shapes_are_left_out(path, monkeypatch):
    monkeypatch.setattr(call_log, "_MOST_NAMES", 5)
    monkeypatch.setattr(call_log, "_MOST_KNOWN", 4)
    log = CallLog(path)
    for number in [*range(10), *range(10)]:
        note(log, number, call((number,)))
    shapes = [each.call.shape for each in CallReader(path).read()]
    assert shapes == 2 * [(0,), (1,), (2,), (3,), (4,), *5 * [None]]


def test_a_process_that_was_forked_logs_nothing(path):
    log = CallLog(path)
    if (pid := os.fork()) == 0:
        note(log, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    assert CallReader(path).read() == []


def test_the_calls_of_a_process_that_was_killed_are_known(path):
    if (pid := os.fork()) == 0:
        log = CallLog(path)
        for number in range(3):
            note(log, number)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert [each.number for each in CallReader(path).read()] == [0, 1, 2]


def test_a_log_that_was_removed_is_still_noted_in(path):
    log, reader = CallLog(path), CallReader(path)
    note(log, 1)
    path.unlink()
    note(log, 2)
    assert reader.read() == []
