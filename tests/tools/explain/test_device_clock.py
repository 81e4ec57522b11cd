"""The clock of a GPU, with a stream of work that stands for one: no GPU is here. (tests/cuda has
one.)"""

import pytest
import torch

from lockstep._events.measure.device_clock import DeviceClock

DATA, FORWARD, SCRIPT = range(3)


class Stream:
    """Runs what it is given in order, from when it was given, and is at some time by now."""

    def __init__(self):
        self.now_s = 0.0
        self.free_s = 0.0

    def work(self, seconds):
        self.free_s = max(self.free_s, self.now_s) + seconds


class Event:
    def record(self, stream):
        self.stream = stream
        self.at_s = stream.free_s = max(stream.free_s, stream.now_s)

    def query(self):
        return self.stream.now_s >= self.at_s

    def synchronize(self):
        self.stream.now_s = max(self.stream.now_s, self.at_s)

    def elapsed_time(self, other):
        return 1e3 * (other.at_s - self.at_s)


class Clock(DeviceClock):
    def __init__(self):
        self.stream, self.is_captured = Stream(), False
        super().__init__(torch.device("cuda"), 3)

    def _make_event(self):
        return Event()

    def _stream(self):
        return self.stream

    def _is_capturing(self):
        return self.is_captured


def a_step(clock, data_s, forward_s):
    """The script waits for data, gives the GPU work, and goes on at once."""
    clock.stream.now_s += data_s
    clock.charge(DATA)
    clock.stream.work(forward_s)
    clock.charge(FORWARD)


def test_only_what_the_gpu_waits_for_data_counts_as_waiting():
    clock = Clock()
    clock.begin()
    for _ in range(4):
        a_step(clock, data_s=0.2, forward_s=1.0)
    clock.read(wait=True)
    assert clock.seconds == pytest.approx([0.2, 4.0, 0.0])
    clock.begin()
    for _ in range(4):
        a_step(clock, data_s=1.0, forward_s=0.2)
    clock.read(wait=True)
    # each but the first finds it at work for 0.2 s
    assert clock.seconds == pytest.approx([1.0 + 3 * 0.8, 0.8, 0.0])


def test_what_the_gpu_has_not_come_by_is_counted_later_and_nobody_waits_for_it():
    clock = Clock()
    clock.begin()
    a_step(clock, data_s=0.1, forward_s=5.0)
    clock.read()
    assert clock.seconds == pytest.approx([0.1, 0.0, 0.0])
    assert clock.stream.now_s == pytest.approx(0.1)
    clock.stream.now_s = 6.0
    clock.read()
    assert clock.seconds == pytest.approx([0.1, 5.0, 0.0])


def test_events_are_used_again():
    clock = Clock()
    made = []
    make, clock._make_event = clock._make_event, lambda: made.append(1) or make()
    clock.begin()
    for _ in range(100):
        a_step(clock, data_s=0.1, forward_s=0.1)
        clock.read(wait=True)
    clock.begin()
    assert len(made) <= 4


def test_while_a_graph_is_captured_nothing_is_marked():
    clock = Clock()
    clock.begin()
    clock.is_captured = True
    a_step(clock, data_s=0.1, forward_s=0.1)
    clock.is_captured = False
    clock.charge(SCRIPT)
    clock.read(wait=True)
    assert clock.seconds == pytest.approx([0.0, 0.0, 0.2])
