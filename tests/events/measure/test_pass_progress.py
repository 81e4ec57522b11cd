"""Promises of the time left: from what steps and epochs have taken, and nothing where the length is
not known."""

import types

import pytest

from lockstep._events.measure import passes
from lockstep._events.measure.pass_progress import PassProgress, bar_line, clock, time_left
from lockstep._events.measure.passes import PassMeter
from lockstep._events.writer import EventWriter

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def at(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(passes.time, "time", lambda: now[0])
    return now


def make_counter():
    return PassMeter(EventWriter(None), None, dict, speaks=False)


def take(counter, at, number, step_s):
    for _ in range(number):
        at[0] += step_s
        counter.end_step(0, 8)


def shown(counter, at):
    return time_left(counter.progress, at[0])


def test_before_anything_is_known_nothing_is_said(at):
    counter = make_counter()
    assert counter.progress is None
    counter.begin_pass(0, 3, 100, 0)
    take(counter, at, 1, 30)  # the first step, in which workers start and kernels are chosen
    assert shown(counter, at) == []


def test_the_first_step_does_not_count_and_the_run_is_all_its_epochs(at):
    counter = make_counter()
    counter.begin_pass(0, 3, 100, 0)
    take(counter, at, 1, 30)
    take(counter, at, 10, 0.5)
    assert shown(counter, at) == ["0:44 left", "2:24 for the run"]  # 89 steps; and 200 more
    assert counter.progress.samples_per_s(at[0]) == 16


def test_a_later_epoch_is_expected_to_take_as_long_as_the_one_before(at):
    counter = make_counter()
    counter.begin_pass(0, 4, 10, 0)
    take(counter, at, 10, 1)
    counter.end_pass(10, exhausted=True)
    at[0] += 90  # evaluating
    assert shown(counter, at) == ["0:00 left", "0:30 for the run"]
    counter.begin_pass(1, 4, 10, 0)
    assert shown(counter, at) == ["0:10 left", "5:00 for the run"]
    take(counter, at, 10, 1)
    counter.end_pass(20, exhausted=True)
    assert shown(counter, at) == ["0:00 left", "4:50 for the run"]


def test_an_epoch_that_was_resumed_in_its_middle_is_no_measure_of_others(at):
    counter = make_counter()
    counter.begin_pass(1, 4, 10, 8)
    take(counter, at, 2, 1)
    at[0] += 5
    counter.begin_pass(2, 4, 10, 0)
    assert counter.progress.epoch_s is None
    take(counter, at, 3, 1)
    assert shown(counter, at) == ["0:07 left", "0:17 for the run"]


def test_an_epoch_of_several_passes_is_measured_as_a_whole_and_the_run_is_told_of_behind_the_first(at):
    counter = make_counter()
    counter.begin_pass(0, 4, 10, 0)
    take(counter, at, 10, 1)
    counter.end_pass(10, exhausted=True)
    counter.begin_pass(0, 4, 20, 0)
    take(counter, at, 5, 1)
    assert shown(counter, at) == ["0:15 left"]
    take(counter, at, 15, 1)
    counter.end_pass(30, exhausted=True)
    at[0] += 10
    counter.begin_pass(1, 4, 10, 0)
    assert shown(counter, at) == ["0:10 left", "2:00 for the run"]  # three times 40 s
    take(counter, at, 10, 1)
    counter.end_pass(40, exhausted=True)
    counter.begin_pass(1, 4, 20, 0)
    assert shown(counter, at) == ["0:20 left", "1:50 for the run"]
    take(counter, at, 10, 5)
    assert shown(counter, at) == ["0:50 left", "2:10 for the run"]  # as long as what is left of this pass at least


@pytest.mark.parametrize(
    ("done", "num_steps", "taken", "warm_up"),
    [
        *((0, 40, 40, 10), (0, 8, 8, 4), (32, 40, 8, 4), (39, 40, 1, 0)),
        *((0, 40, 9, 9), (0, None, 9, 9), (0, 40, 10, 10)),  # left, or over, before that is
    ],
)
def test_half_of_what_a_resume_has_left_of_a_pass_is_warm_up_at_most(done, num_steps, taken, warm_up):
    written = []
    events = types.SimpleNamespace(write=lambda kind, **fields: written.append(fields))
    counter = PassMeter(events, types.SimpleNamespace(all_gather_plain=lambda fields: [fields]), dict, speaks=False)
    counter.begin_pass(0, 1, num_steps, done)
    for _ in range(taken):
        counter.end_step(0, 8)
    counter.end_pass(taken, exhausted=True)
    counter.flush()
    counter.flush()
    ((event),) = written
    steady = taken - warm_up
    assert (event["num_steps"], event["steady_steps"], event["steady_samples"]) == (taken, steady, 8 * steady)


@pytest.mark.parametrize("num_epochs", [None, 1])
def test_of_one_epoch_or_of_epochs_that_the_script_counts_only_the_pass_is_told(at, num_epochs):
    counter = make_counter()
    counter.begin_pass(0, num_epochs, 100, 40)
    take(counter, at, 11, 1)
    assert shown(counter, at) == ["0:49 left"]


def test_a_pass_of_unknown_length_tells_nothing(at):
    counter = make_counter()
    counter.begin_pass(0, 5, None, 0)
    take(counter, at, 11, 1)
    assert shown(counter, at) == []


def test_where_nothing_moves_what_is_known_does_not_change(at):
    counter = make_counter()
    counter.begin_pass(0, 5, 20, 0)
    take(counter, at, 4, 1)
    before = counter.progress.as_json()
    at[0] += 100
    assert counter.progress.as_json() == before


def test_times_are_short():
    assert [clock(s) for s in (0, 59.6, 3723, 90000, 200000)] == ["0:00", "1:00", "1:02:03", "25:00:00", "2 d 7 h"]


def drawn(progress, times=(), values=(), width=80):
    return "".join(part for part, _ in bar_line(progress, times, values, width))


def bar(width):
    times, values = ["0:44 left", "2:24 for the run"], ["loss 0.25", "accuracy 0.5"]
    return drawn(PassProgress(epoch=0, num_epochs=2, num_steps=400, done=120, epoch_began_s=0.0), times, values, width)


def test_a_bar_fits_its_terminal_and_what_matters_less_gives_way_first():
    for width in range(1, 130):
        assert len(bar(width)) <= max(width, len("epoch 1/2  120/400"))
    assert bar(120) == f"epoch 1/2  {'━' * 9}{'─' * 21}  120/400  0:44 left  2:24 for the run  loss 0.25  accuracy 0.5"
    assert bar(80) == f"epoch 1/2  ━{'─' * 5}  120/400  0:44 left  2:24 for the run  loss 0.25  accuracy 0.5"
    assert bar(60) == "epoch 1/2  120/400  0:44 left  2:24 for the run  loss 0.25"
    assert bar(30) == "epoch 1/2  120/400  0:44 left"


def test_a_bar_of_unknown_length_is_a_count():
    assert drawn(PassProgress(epoch=0, num_epochs=None, num_steps=None, done=3, epoch_began_s=0.0)) == "epoch 1  3/?"
