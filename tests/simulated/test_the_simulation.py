"""The simulated device itself: whatever a script forgets to wait for is found, and nothing is said
of one that waits."""

import threading

import pytest
import torch

from lockstep._world.devices import on_this_device

pytestmark = pytest.mark.timeout(60)
SIM = "sim:0"


def on(stream):
    """The stream, as a context, after what was launched so far."""
    stream.wait_stream(torch.accelerator.current_stream())
    return stream


def said(device, word):
    return [line for line in device.reports() if line.startswith(word)]


# What is found


def test_a_read_that_no_event_orders_after_the_write_is_found_with_its_line(device):
    other = torch.Stream(SIM)
    values = torch.ones(4, device=SIM)
    with other:
        values + 1
    (line,) = said(device, "RACE")
    assert "add reads on stream" in line
    assert "test_the_simulation.py" in line


def test_a_write_while_another_stream_reads_is_found(device):
    other = torch.Stream(SIM)
    values = torch.ones(4, device=SIM)
    with on(other):
        doubled = values * 2
    values.zero_()
    assert len(said(device, "RACE")) == 1
    torch.accelerator.current_stream().wait_stream(other)
    doubled + values
    assert len(said(device, "RACE")) == 1


@pytest.mark.parametrize("wait", ["stream", "event", "host"])
def test_a_wait_of_any_kind_is_enough(device, wait):
    other = torch.Stream(SIM)
    values = torch.ones(4, device=SIM)
    with on(other):
        values.mul_(2)
    if wait == "stream":
        torch.accelerator.current_stream().wait_stream(other)
    elif wait == "event":
        torch.accelerator.current_stream().wait_event(other.record_event())
    else:
        other.synchronize()
    assert (values + 1).tolist() == [3.0] * 4
    assert device.reports() == []


def test_memory_that_is_freed_while_another_stream_uses_it_is_found(device):
    other = torch.Stream(SIM)
    values = torch.ones(4, device=SIM)
    with on(other):
        values * 2
    del values
    assert len(said(device, "FREED")) == 1


@pytest.mark.parametrize("how", ["recorded", "waited for"])
def test_memory_may_be_freed_when_the_allocator_knows_of_the_other_stream(device, how):
    other = torch.Stream(SIM)
    values = torch.ones(4, device=SIM)
    with on(other):
        values * 2
    if how == "recorded":
        values.record_stream(other)
    else:
        torch.accelerator.current_stream().wait_stream(other)
    del values
    assert device.reports() == []


def test_a_copy_to_pinned_memory_arrives_when_the_host_has_waited(device):
    values, pinned = torch.ones(4, device=SIM), torch.zeros(4, pin_memory=True)
    pinned.copy_(values, non_blocking=True)
    event = torch.accelerator.current_stream().record_event()
    assert pinned.tolist() != [1.0] * 4
    event.synchronize()
    assert pinned.tolist() == [1.0] * 4


def test_a_pinned_source_that_changes_on_the_way_is_found(device):
    pinned = torch.ones(4, pin_memory=True)
    pinned.to(SIM, non_blocking=True)
    pinned.zero_()
    torch.accelerator.synchronize()
    assert len(said(device, "CHANGED")) == 1


def test_memory_is_not_zero_when_it_is_new_nor_kept_when_it_is_freed(device):
    assert torch.empty(4, device=SIM).ne(0).all()


def test_an_event_has_not_come_to_pass_when_it_is_first_asked_for(device):
    torch.ones(4, device=SIM)
    event = torch.accelerator.current_stream().record_event()
    assert [event.query(), event.query()] == [False, True]
    assert device.waits() == {}


# What is counted


def test_launches_and_waits_are_counted_with_the_line_of_each_wait(device):
    values = torch.ones(4, device=SIM)
    device.reset()
    torch._foreach_add_([values, values.clone()], 1.0)
    assert sum(device.launches().values()) == 2  # the copy, and one for the list
    counts = torch.ones(2, dtype=torch.int64, device=SIM)
    device.reset()
    torch._foreach_zero_([values, counts, values])
    assert sum(device.launches().values()) == 3  # as CUDA does where a list has several dtypes
    device.reset()
    assert device.waits() == {}
    values.sum().item()
    bool(torch.equal(values, values))
    values[values > 0]
    places = list(device.waits())
    assert len(places) == 3
    assert all("test_the_simulation.py" in place for place in places)


def test_blocking_copies_wait_and_those_to_pinned_memory_do_not(device):
    values, pinned = torch.ones(4, device=SIM), torch.zeros(4, pin_memory=True)
    device.reset()
    pinned.copy_(values, non_blocking=True)
    torch.zeros(4, pin_memory=True).to(SIM, non_blocking=True)
    assert device.waits() == {}
    values.cpu()
    torch.ones(4).to(SIM)
    assert sum(device.waits().values()) == 2


def test_a_thread_begins_on_the_device_of_the_one_that_starts_it(device):
    seen = []
    with torch.accelerator.device_index(1):
        look = lambda: seen.append(torch.accelerator.current_device_index())  # noqa: E731
        for run in (look, on_this_device(look)):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
    assert seen == [0, 1]
