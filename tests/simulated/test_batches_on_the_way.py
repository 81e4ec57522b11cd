"""Batches on their way to the device: beside the kernels, and never used before they have
arrived."""

import pytest
import scripts
import torch
from torch.nn.utils.rnn import pack_sequence

from lockstep._data.uploads import Uploads

pytestmark = pytest.mark.timeout(120)
SIM = "sim:0"


@pytest.fixture
def uploads():
    return Uploads(torch.device(SIM), [])


def busy():
    """An event after a kernel that has just been launched."""
    torch.ones(4, device=SIM).mul_(2)
    return torch.accelerator.current_stream().record_event()


@pytest.mark.parametrize("pinned", [True, False])
def test_a_copy_does_not_wait_for_the_kernels_of_the_step_before(device, uploads, pinned):
    kernel = busy()
    moved = uploads.copy((torch.ones(4, pin_memory=pinned), "text"))
    moved.arrived.synchronize()
    assert not kernel.query()  # the host has waited for the copy alone
    (values, text) = uploads.arrive(moved)
    assert (values.tolist(), str(values.device), text) == ([1.0] * 4, "sim:0", "text")
    assert device.reports() == []


def test_the_memory_of_a_batch_is_not_given_to_the_next_while_a_kernel_may_read_it(device, uploads):
    uploads.move(torch.ones(4, pin_memory=True)).mul_(2)  # and forgotten
    assert device.reports() == []


def test_while_a_shard_runs_the_next_is_copied(device, uploads):
    upload = uploads.of([torch.ones(4, pin_memory=True), torch.zeros(4, pin_memory=True)])
    first = upload.take(0, upload.data[0])
    device.reset()
    upload.take(1, upload.data[1]).add_(first)
    assert "copy to the device" not in device.launches()
    assert device.reports() == []


def test_objects_with_rules_of_their_own_move_by_these(device, uploads):
    packed = uploads.move({"texts": pack_sequence([torch.ones(3, 2), torch.zeros(1, 2)])})["texts"]
    assert (str(packed.data.device), str(packed.batch_sizes.device)) == ("sim:0", "cpu")
    assert device.reports() == []


@pytest.mark.parametrize(("nproc", "pinned"), [(1, True), (2, True), (2, False)])
def test_a_run_whose_batches_are_fetched_by_workers_has_the_digest_of_one_without(crew, nproc, pinned):
    (on_cpu,) = crew(1, scripts.train, device="cpu", shards=2)
    for one in crew(nproc, scripts.train, 2, 1, pinned, shards=2):
        assert one["reports"] == []
        assert one["digest"] == on_cpu["digest"]


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("breaks", [False, True])
def test_pinned_memory_that_the_script_fills_again_is_not_changed_while_it_is_copied(crew, nproc, breaks):
    ((losses, expected, _),) = crew(1, scripts.train_refilled, breaks, device="cpu", shards=2)
    for found in crew(nproc, scripts.train_refilled, breaks, shards=2):
        assert found[1:] == (expected, [])
        assert found[0] == losses
