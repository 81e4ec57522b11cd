"""The simulated device itself: whatever a script forgets to wait for is found, and nothing is said of one that waits."""

import threading

import pytest
import torch
from torch import nn

from lockstep.world.devices import on_this_device

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


# It is a device like others


def test_generators_are_one_for_each_device_and_draw_as_the_cpu_does(device):
    torch.sim.manual_seed_all(3)
    torch.manual_seed(3)
    on_cpu = torch.rand(3)
    assert torch.equal(torch.rand(3, device="sim:1").cpu(), on_cpu)
    state = torch.sim.get_rng_state(0)
    first = torch.rand(3, device="sim:0").cpu()
    torch.sim.set_rng_state(state, 0)
    assert torch.equal(torch.rand(3, device="sim:0").cpu(), first)
    assert torch.equal(first, on_cpu)


def test_tensors_on_two_devices_are_ordered_by_a_copy_between_them(device):
    values = torch.ones(4, device="sim:0")
    moved = values.to("sim:1")
    assert str((moved + 1).device) == "sim:1"
    assert device.reports() == []


def test_autocast_follows_the_rules_of_cuda(device):
    layer = nn.Linear(4, 4).to(SIM)
    with torch.autocast("sim", dtype=torch.bfloat16):
        product = layer(torch.ones(2, 4, device=SIM))
        assert (product.dtype, product.softmax(1).dtype) == (torch.bfloat16, torch.float32)


def test_a_scaler_finds_an_overflow(device):
    scaler = torch.amp.GradScaler("sim")
    weight = nn.Parameter(torch.ones(2, device=SIM))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale((weight * torch.tensor([1.0, torch.inf], device=SIM)).sum()).backward()
    scaler.step(optimizer)
    assert weight.tolist() == [1.0, 1.0]


def test_a_training_gives_the_bits_of_the_cpu(device):
    def train(where):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for images in torch.randn(4, 6, 1, 8, 8):
            loss = nn.functional.cross_entropy(model(images.to(where)), torch.arange(6, device=where) % 3)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [value.cpu() for value in model.state_dict().values()]

    assert all(map(torch.equal, train(SIM), train("cpu")))
    assert device.reports() == []


def test_a_thread_begins_on_the_device_of_the_one_that_starts_it(device):
    seen = []
    with torch.accelerator.device_index(1):
        look = lambda: seen.append(torch.accelerator.current_device_index())  # noqa: E731
        for run in (look, on_this_device(look)):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
    assert seen == [0, 1]
