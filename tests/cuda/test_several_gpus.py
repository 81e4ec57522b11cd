"""Several devices of one process: nn.DataParallel, and models in parts. (``make simulated`` has
four devices.)

What needs only one GPU has it stand for two: with ``backend="gloo"`` processes, and the devices of
one, share GPUs."""

import device_scripts
import exchange_scripts
import pytest
import torch
from places import BACKENDS, DEVICE, KIND, OVER_DEVICES, needs_devices, only_on_cuda
from places import SHARED as ON_ONE

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(180)]
two_gpus = needs_devices(2)
data_parallel = only_on_cuda("nn.DataParallel knows no other devices")
SHARED = {**ON_ONE, "devices_per_process": 2}


def assert_close(one, other, tolerance=2e-4):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


# nn.DataParallel


@data_parallel
@pytest.mark.parametrize("shards", [1, 2])
def test_dp_on_one_gpu_gives_the_answer_of_single(standing_crew, shards):
    settings = {**DEVICE, "shards": shards}
    (single,) = standing_crew(1, device_scripts.train_whole, strategy="single", **settings)
    (dp,) = standing_crew(1, device_scripts.train_whole, strategy="dp", devices_per_process=1, **settings)
    assert_close(dp["state"], single["state"])
    assert list(dp["state"]) == ["first.weight", "first.bias", "last.weight", "last.bias"]


@data_parallel
def test_dp_under_autocast_keeps_its_format(standing_crew):
    (dp,) = standing_crew(1, device_scripts.train_whole, strategy="dp", precision="bf16-mixed", **DEVICE)
    assert {dtype for dtype, _, _ in dp["ran"]} == {"torch.bfloat16"}
    assert dp["output"] == ("torch.float32", "cuda:0")
    assert {tensor.dtype for tensor in dp["state"].values()} == {torch.float32}


@data_parallel
@two_gpus
@pytest.mark.parametrize("shards", [1, 2])
def test_dp_on_two_gpus_cuts_each_shard_and_gives_the_answer_of_single(standing_crew, shards):
    settings = {**DEVICE, "shards": shards}
    (single,) = standing_crew(1, device_scripts.train_whole, strategy="single", **settings)
    (dp,) = standing_crew(1, device_scripts.train_whole, strategy="dp", devices_per_process=2, **settings)
    assert_close(dp["state"], single["state"])
    assert {gpu for _, gpu, _ in dp["ran"]} == {0, 1}
    # of 16, and of the last 8 of 40
    assert {length for _, _, length in dp["ran"]} == {8 // shards, 4 // shards}


# A model in parts


@pytest.fixture(scope="module")
def alone():
    """The undisturbed run by one process whose two devices are one GPU. Filled by the first test
    that needs it."""
    return {}


def undisturbed(standing_crew, alone):
    if not alone:
        (found,) = standing_crew(1, device_scripts.train_parts, shards=2, **SHARED)
        alone.update(found)
    return alone


def test_two_processes_with_two_devices_each_give_the_answer_of_one_to_the_bit(standing_crew, alone):
    expected = undisturbed(standing_crew, alone)
    assert len(expected["team"]) == 2
    for one in standing_crew(2, device_scripts.train_parts, shards=2, **SHARED):
        assert_equal(one["state"], expected["state"])
        assert one["losses"] == expected["losses"]


def test_ddp_over_parts_gives_the_answer_up_to_rounding(standing_crew, alone):
    expected = undisturbed(standing_crew, alone)
    two = standing_crew(2, device_scripts.train_parts, shards=2, strategy="ddp", **SHARED)
    assert_close(two[0]["state"], expected["state"])
    assert_equal(two[0]["state"], two[1]["state"])


def test_a_run_over_parts_goes_on_from_its_checkpoint(standing_crew, alone):
    expected = undisturbed(standing_crew, alone)
    standing_crew(1, device_scripts.train_parts, 1, shards=2, run_dir="run", checkpoint_every=1, **SHARED)
    for one in standing_crew(2, device_scripts.train_parts, shards=2, run_dir="run", **SHARED):
        assert_equal(one["state"], expected["state"])


@two_gpus
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", ["single", "ddp", "exact"])
def test_parts_stay_on_the_two_gpus_where_the_script_has_put_them(standing_crew, strategy, backend):
    settings = {**DEVICE, "backend": backend, "devices_per_process": 2, "strategy": strategy, "shards": 2}
    (first,) = standing_crew(1, device_scripts.train_parts, **settings)
    assert first["team"] == [f"{KIND}:0", f"{KIND}:1"]
    assert first["devices"] == [f"{KIND}:0"] * 3 + [f"{KIND}:1"] * 2
    # dropout on the second GPU too has its streams
    (again,) = standing_crew(1, device_scripts.train_parts, **settings)
    assert_equal(first["state"], again["state"])
    assert first["losses"] == again["losses"]


@two_gpus
def test_a_run_over_two_gpus_goes_on_from_its_checkpoint(standing_crew):
    settings = {**DEVICE, "devices_per_process": 2, "shards": 2}
    (whole,) = standing_crew(1, device_scripts.train_parts, **settings)
    standing_crew(1, device_scripts.train_parts, 1, run_dir="run", checkpoint_every=1, **settings)
    (gone_on,) = standing_crew(1, device_scripts.train_parts, run_dir="run", **settings)
    assert_equal(gone_on["state"], whole["state"])


@needs_devices(4)
@pytest.mark.parametrize("strategy", ["ddp", "exact"])
def test_two_processes_with_two_gpus_each_talk_over_nccl(standing_crew, strategy):
    settings = {**DEVICE, "devices_per_process": 2, "strategy": strategy, "shards": 2}
    (alone,) = standing_crew(1, device_scripts.train_parts, **{**settings, "strategy": "exact"})
    two = standing_crew(2, device_scripts.train_parts, **settings)
    assert [one["team"] for one in two] == [[f"{KIND}:0", f"{KIND}:1"], [f"{KIND}:2", f"{KIND}:3"]]
    for one in two:
        (assert_equal if strategy == "exact" else assert_close)(one["state"], alone["state"])


@needs_devices(2)
def test_the_doctor_times_the_exchange_between_gpus(crew):
    assert crew(2, exchange_scripts.exchange_twice, **OVER_DEVICES) == [([{3.0}, {3.0}], KIND, 2)] * 2
