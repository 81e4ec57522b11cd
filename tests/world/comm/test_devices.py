"""Who gets which devices: a function of the settings, the process's place, and how many GPUs there
are."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from codes import raises
from torch.distributed import HashStore

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError
from lockstep._world.comm import machines
from lockstep._world.comm.group import choose_devices, choose_transport
from lockstep._world.environment import World

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def gpus(monkeypatch):
    """``gpus(n)``: from now on PyTorch counts so many."""

    def there_are(count):
        found = torch.device("cuda") if count else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: found)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)

    return there_are


def place(rank, size):
    return World(rank=rank, world_size=size, local_rank=rank, local_world_size=size)


def chosen(size, **settings):
    """On the second of two machines; on the only one if the process is alone."""
    before = size if size > 1 else 0
    places = [replace(place(rank, size), rank=before + rank, world_size=before + size) for rank in range(size)]
    return [[device.index for device in choose_devices(RunConfig(**settings), place)] for place in places]


@pytest.mark.parametrize(
    ("count", "size", "settings", "expected"),
    [
        (4, 4, {}, [[0], [1], [2], [3]]),
        (2, 3, {}, [[0], [1], [0]]),
        (4, 2, {"devices_per_process": 2}, [[0, 1], [2, 3]]),
        (3, 2, {"devices_per_process": 2, "backend": "gloo"}, [[0, 1], [2, 0]]),
        (4, 1, {"strategy": "dp"}, [[0, 1, 2, 3]]),
    ],
)
def test_gpus_are_given_out_by_local_rank_as_many_as_each_process_drives(gpus, count, size, settings, expected):
    gpus(count)
    assert chosen(size, **settings) == expected


@pytest.mark.parametrize(("count", "settings"), [(0, {}), (4, {"device": "cpu"})])
def test_on_the_cpu_all_devices_of_a_process_are_the_same_one(gpus, count, settings):
    gpus(count)
    assert choose_devices(RunConfig(devices_per_process=3, **settings), place(1, 2)) == (torch.device("cpu"),) * 3


@pytest.mark.parametrize(
    ("count", "size", "settings", "words"),
    [
        (3, 2, {"devices_per_process": 2}, r"devices_per_process=2 .* 2 process.* 3 CUDA"),
        (1, 1, {"devices_per_process": 2}, r"1 CUDA GPU.*backend='gloo'"),
        (2, 1, {"strategy": "dp", "devices_per_process": 3, "backend": "gloo"}, r"fewer devices or processes$"),
        (0, 1, {"device": "cuda", "devices_per_process": 2}, "sees no CUDA GPU"),
    ],
)
def test_more_devices_than_there_are_is_an_error(gpus, count, size, settings, words):
    gpus(count)
    with pytest.raises(ConfigError, match=words):
        chosen(size, **settings)


def test_nccl_needs_a_gpu_for_each_device_of_each_process(gpus):
    gpus(4)
    four = [torch.device("cuda", index) for index in range(4)]
    assert choose_transport(RunConfig(), place(0, 2), four[:2], are_own=True).backend == "nccl"
    assert choose_transport(RunConfig(), place(0, 2), four, are_own=False).backend == "gloo"
    with raises(ConfigError, "backend-nccl-devices"):
        choose_transport(RunConfig(backend="nccl"), place(0, 2), four, are_own=False)


@pytest.fixture
def own(monkeypatch):
    """``own(UUID and card of each rank's GPU)``: whether each rank finds that its GPU is its
    own."""

    def ask(gpus_of_ranks):
        monkeypatch.setattr(machines, "uuid_of", lambda device: gpus_of_ranks[device.index][0])
        monkeypatch.setattr(machines, "card_of", lambda device: gpus_of_ranks[device.index][1])
        store, size = HashStore(), len(gpus_of_ranks)
        with ThreadPoolExecutor(size) as ranks:
            ask_one = lambda rank: machines.owns_gpu_exclusively(place(rank, size), [torch.device("cuda", rank)], store)  # noqa: E731
            return list(ranks.map(ask_one, range(size)))

    return ask


@pytest.mark.parametrize(
    ("count", "gpus_of_ranks", "expected"),
    [
        (2, [("GPU-a", "0:1:0"), ("GPU-a", "0:1:0")], True),  # both seen: nothing to compare
        (1, [("GPU-a", "0:1:0"), ("GPU-b", "0:2:0")], True),  # one each, by a scheduler
        (1, [("GPU-a", "0:1:0"), ("GPU-a", "0:1:0")], False),  # one, which they share
        (1, [("MIG-a", "0:1:0"), ("MIG-b", "0:1:0")], False),  # parts of one
        (1, [("GPU-a", ""), ("GPU-b", "")], True),  # which card is not known
        (1, [("", ""), ("", "")], False),
    ],
)
def test_processes_that_see_one_gpu_each_are_told_from_those_that_share_one(gpus, own, count, gpus_of_ranks, expected):
    gpus(count)
    assert own(gpus_of_ranks) == [expected] * 2


def test_cards_of_two_machines_are_two_although_they_are_in_the_same_place(gpus, own, monkeypatch):
    gpus(1)
    monkeypatch.setattr(machines, "this_machine", iter(["one", "other"]).__next__)
    assert own([("GPU-a", "0:1:0"), ("GPU-b", "0:1:0")]) == [True, True]


def test_before_ranks_have_met_gpus_that_may_be_their_own_are_no_error(gpus, monkeypatch):
    gpus(1)
    monkeypatch.setattr(machines, "uuid_of", lambda device: "GPU-a")
    assert machines.owns_gpu_exclusively(place(0, 4), [torch.device("cuda", 0)], None)
