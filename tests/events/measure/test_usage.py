"""Promises of the usage meter: CPU of the whole family counted once, memory of the process, GPUs
only if used."""

import json
import os
import subprocess
import sys
import types

import pytest
import torch

from lockstep._events.measure import usage
from lockstep._events.measure.usage import Usage
from lockstep._world import devices

pytestmark = pytest.mark.timeout(30)

# In a process of its own: pytest's may have other children and threads, whose work would be counted
# too.
PROGRAM = """
import json, resource, subprocess, sys, time
from types import SimpleNamespace
import psutil
from lockstep._events.measure.usage import Usage

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass

CHILD = "import sys, time\\nwhile time.process_time() < 0.3: pass\\nprint('burnt', flush=True); sys.stdin.read()"

def child():
    # Uses 0.3 s of the processor, says so, and then stays until its input is closed.
    return subprocess.Popen([sys.executable, "-S", "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def used_s(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime

meter = Usage()
"""


def measured(code):
    """What ``code`` prints as JSON at its end, run behind PROGRAM in a fresh process."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM + code], capture_output=True, text=True, check=True)
    return types.SimpleNamespace(**json.loads(ended.stdout))


def test_counts_work_and_not_waiting():
    used = measured("""
before_s = used_s(resource.RUSAGE_SELF)
burn(0.2)
time.sleep(0.5)
spent_s = used_s(resource.RUSAGE_SELF) - before_s
used = SimpleNamespace(**meter.end())
print(json.dumps({"cpu_s": used.cpu_s, "wall_s": used.wall_s, "spent_s": spent_s}))
""")
    assert 0.19 <= used.cpu_s <= used.spent_s + 0.25
    assert used.wall_s >= 0.69


def test_counts_a_child_that_lives_or_has_ended_and_each_only_once():
    used = measured("""
process = child()
process.stdout.readline()
living = SimpleNamespace(**meter.end())
meter = Usage()
process.communicate()
ended = SimpleNamespace(**meter.end())
meter = Usage()
process = child()
process.communicate()
short = SimpleNamespace(**meter.end())
print(json.dumps({"living_s": living.cpu_s, "ended_s": ended.cpu_s, "short_s": short.cpu_s}))
""")
    assert used.living_s >= 0.28
    assert used.short_s >= 0.28
    assert used.ended_s < 0.28, "the child's earlier work was counted again when it ended"


def test_peak_memory_keeps_what_was_given_back():
    before = usage.peak_rss_bytes()
    block = bytearray(os.urandom(1)) * 300_000_000
    del block
    assert usage.peak_rss_bytes() >= max(before, 300_000_000)


class FakeGpus:
    """As much of torch.cuda as the meter looks at."""

    def __init__(self, read, reserved=(0, 1000, 70)):
        self.utilization, self.reserved = read, reserved

    def device_count(self):
        return len(self.reserved)

    def max_memory_reserved(self, index):
        return self.reserved[index]


def with_gpus(monkeypatch, *args):
    monkeypatch.setattr(devices, "in_use", lambda: FakeGpus(*args))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)


def test_without_a_gpu_in_use_its_figures_are_none(monkeypatch):
    monkeypatch.setattr(devices, "in_use", lambda: None)
    used = Usage().end()
    assert (used["peak_gpu_bytes"], used["gpu_utilisation"]) == (None, None)


@pytest.mark.parametrize(
    ("reserved", "utilisation", "expected"),
    [((0, 1000, 70), {1: 80, 2: 40}, (1070, 60.0)), ((0, 0), {1: 80}, (0, 80.0))],
    ids=["several in use", "none yet: the current one"],
)
def test_with_gpus_their_memory_and_the_mean_utilisation_of_those_in_use(monkeypatch, reserved, utilisation, expected):
    with_gpus(monkeypatch, utilisation.__getitem__, reserved)
    used = Usage().end()
    assert (used["peak_gpu_bytes"], used["gpu_utilisation"]) == expected


def test_a_gpu_whose_utilisation_cannot_be_read_spoils_nothing(monkeypatch):
    def refuse(device):
        raise ModuleNotFoundError("pynvml")

    with_gpus(monkeypatch, refuse)
    used = Usage().end()
    assert (used["peak_gpu_bytes"], used["gpu_utilisation"]) == (1070, None)
