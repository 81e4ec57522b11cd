"""The interface is the user's word, else loopback on one machine, else the way to the others; and
it is told."""

import os
import socket

import pytest
import torch
from codes import raises

import lockstep
from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError
from lockstep._world.comm.group import Transport, choose_transport, close_group, open_group
from lockstep._world.comm.interface import choose_interface, interface_towards, nccl_interface
from lockstep._world.comm.store import open_store
from lockstep._world.environment import World

pytestmark = pytest.mark.timeout(60)
CHANNELS = "NCCL_MAX_P2P_NCHANNELS"


@pytest.fixture(autouse=True)
def no_word(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)


def test_one_machine_never_uses_the_network():
    assert choose_interface(on_one_machine=True, towards="192.0.2.1") == "lo"


@pytest.mark.parametrize("on_one_machine", [True, False])
def test_the_users_word_counts(monkeypatch, on_one_machine):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert choose_interface(on_one_machine=on_one_machine, towards=None) == "lo"


def test_between_machines_it_is_the_one_that_leads_to_the_others():
    chosen = choose_interface(on_one_machine=False, towards="127.0.0.1")
    assert chosen != "lo", "loopback leads to nobody else"
    assert chosen in ("auto", *(name for _, name in socket.if_nameindex()))
    found = interface_towards("192.0.2.1")
    assert chosen == (found or "auto")


def test_no_way_to_a_host_is_no_interface():
    assert interface_towards("no-such-host.invalid") is None
    assert interface_towards("127.0.0.1") is None


def test_what_nccl_listens_on_is_told(monkeypatch):
    assert nccl_interface() == "auto"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 27, 5))
    assert str(Transport(backend="nccl", interface="lo", timeout_s=60)) == "nccl 2.27.5 on ib0"
    assert str(Transport(backend="gloo", interface="lo", timeout_s=60)) == "gloo on lo"


# NCCL's channels

A_GPU = [torch.device("cuda", 0)]


@pytest.mark.parametrize(
    ("strategy", "world_size", "are_own", "limits"),
    [
        ("auto", 2, True, True),
        ("fsdp", 2, True, True),
        ("ddp", 2, True, False),
        ("exact", 1, True, False),
        ("exact", 2, False, False),
    ],
)
def test_channels_are_limited_where_slices_go_over_nccl_unless_the_user_has_set_them(
    monkeypatch, strategy, world_size, are_own, limits
):
    config, world = RunConfig(strategy=strategy), World(world_size=world_size)
    monkeypatch.delenv(CHANNELS, raising=False)
    assert choose_transport(config, world, A_GPU, are_own=are_own).limits_channels == limits
    monkeypatch.setenv(CHANNELS, "2")
    assert not choose_transport(config, world, A_GPU, are_own=are_own).limits_channels


def see_channels():
    """The variable while a group that limits the channels is open, and after it; then with one that
    does not."""
    os.environ.pop(CHANNELS, None)
    found = []
    for limits in (True, False):
        transport = Transport(backend="gloo", interface="lo", timeout_s=60, limits_channels=limits)
        open_group(open_store(RunConfig(), World()), transport, [torch.device("cpu")])
        found.append(os.environ.get(CHANNELS))
        close_group()
        found.append(os.environ.get(CHANNELS))
    return found


def test_the_number_of_channels_is_set_while_the_group_is_open(crew):
    assert crew(1, see_channels) == [["8", None, None, None]]


# Backends


def test_the_mpi_backend_says_what_it_needs_before_anybody_waits(tmp_path):
    with raises(ConfigError, "backend-mpi-missing"):
        lockstep.join(rank=1, world_size=2, init_method="tcp://127.0.0.1:9", backend="mpi", run_dir=str(tmp_path))


def test_the_mpi_backend_is_refused_by_lockstep_run(run_here):
    done = run_here("", "--nproc-per-node", "2", "--backend", "mpi")
    assert done.returncode == 2
    assert "mpirun -np 2" in done.stderr


def test_with_a_pytorch_that_has_it_the_mpi_backend_needs_mpirun(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_mpi_available", lambda: True)
    devices = (torch.device("cpu"),)
    with raises(ConfigError, "backend-mpi-launched"):
        choose_transport(RunConfig(backend="mpi"), World(), devices, are_own=False)
    found = choose_transport(RunConfig(backend="mpi"), World(world_size=2, launcher="mpirun"), devices, are_own=False)
    assert str(found) == "mpi"
