"""Promises of the event about a device's memory. (A device that tells it: tests/simulated.)"""

import pytest
import torch

from lockstep._events.history import read_events
from lockstep._events.measure.first_step_memory import FirstStepMemory
from lockstep._events.writer import EventWriter
from lockstep._world.devices import memory_of

pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize("kind", ["cpu", "mps"])
def test_nothing_is_written_for_a_device_that_does_not_tell_its_memory(tmp_path, kind):
    device = torch.device(kind)
    assert memory_of(device) is None
    writer = EventWriter(tmp_path)
    memory = FirstStepMemory(writer, device)
    memory.begin_pass(0, 1, 2, 0)
    memory.end_step(1, 4)
    writer.close()
    assert list(read_events(tmp_path)) == []
