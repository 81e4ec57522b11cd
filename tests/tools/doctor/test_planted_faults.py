"""Each check of a machine is given the fault that it is for, planted in this machine or in a
namespace of it."""

import os
import socket
from dataclasses import replace

import pytest
from cluster import missing

from lockstep._base.config import RunConfig
from lockstep._launch.gpus import num_present, torch_has_cuda
from lockstep._launch.nodes import plan_nodes
from lockstep._launch.options import LaunchOptions
from lockstep._tools.doctor import cores
from lockstep._tools.doctor.finding import FAIL, OK, STATES, WARN, Check, Situation, ok
from lockstep._tools.doctor.table import CHECKS, examine
from lockstep._world.environment import World

pytestmark = pytest.mark.timeout(60)

NUM_CPUS = len(os.sched_getaffinity(0))


def find(name, **situation):
    (check,) = [check for check in CHECKS if check.name == name]
    (finding,) = examine(Situation(**{"num_processes": 2, **situation}), checks=[check])
    assert finding.check == name
    assert finding.host == socket.gethostname()
    assert finding.state in STATES
    assert bool(finding.remedy) == (finding.state != OK), finding
    return finding


def test_a_machine_without_faults_gets_no_failure():
    findings = examine(Situation(num_processes=1))
    assert [finding for finding in findings if finding.code == "check-failed"] == []
    assert [finding.check for finding in findings] == [check.name for check in CHECKS]
    assert [finding for finding in findings if finding.state == FAIL] == []


def test_a_check_that_breaks_keeps_no_other_from_its_answer():
    breaks = Check("breaks", lambda situation: {}["x"], lambda x: ok(""))
    broken, answered = examine(Situation(num_processes=1), checks=[breaks, CHECKS[0]])
    assert (broken.state, broken.code, "KeyError" in broken.found) == (WARN, "check-failed", True)
    assert answered.state == OK


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """``nvidia_smi(listing, answer, status)``: the program, as it answers ``-L`` and queries."""

    def make(listing, answer, status=0):
        if num_present():
            pytest.skip("this machine has GPUs of its own")
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && echo '{listing}' && exit\necho '{answer}'\nexit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return make


H100 = "NVIDIA H100 80GB HBM3, 535.183.01"


def test_gpus_that_the_installed_torch_cannot_use(nvidia_smi):
    nvidia_smi("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", H100)
    if torch_has_cuda():
        pytest.skip("the installed torch has CUDA")
    found = find("GPUs")
    assert (found.state, found.code) == (WARN, "torch-without-cuda")
    assert find("GPUs", config=RunConfig(device="cuda")).state == FAIL


def test_a_driver_that_does_not_answer(nvidia_smi):
    said = "Failed to initialize NVML: Driver/library version mismatch"
    nvidia_smi("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", said, status=18)
    assert (find("GPUs").state, find("GPUs").found) == (FAIL, f"nvidia-smi: {said}")


def test_a_gpu_that_is_not_there():
    if num_present():
        pytest.skip("this machine has GPUs of its own")
    assert find("GPUs").state == OK
    assert find("GPUs", config=RunConfig(backend="nccl")).state == FAIL


def test_little_shared_memory(examined, require):
    size, state = "8m", FAIL
    require("cluster", missing())
    mount = f"mount -t tmpfs -o size={size} small /dev/shm"
    found = examined("shared memory", ("unshare", "--mount", "sh", "-c", f'{mount} && exec "$0" "$@"'))
    assert found["state"] == state
    assert found["found"].startswith(f"/dev/shm has {int(size[:-1]) * 2**20 // 10**6} MB free of ")


def test_one_core_for_many_processes():
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})
    try:
        found = find("threads", num_processes=4)
    finally:
        os.sched_setaffinity(0, usual)
    assert (found.state, found.code) == (WARN, "cores-below-processes")
    assert found.found.startswith("4 processes x 1 thread on 1 core: ")
    assert "--nproc-per-node 1 " in found.remedy


def test_more_threads_than_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(8 * NUM_CPUS))
    found = find("threads", num_processes=1)
    assert (found.code, found.remedy.split()[-1]) == ("cores-below-threads", str(cores.num_cores()))


@pytest.mark.parametrize(
    ("situation", "threads"),
    [
        ({"num_processes": 1}, 8),
        ({"num_processes": 2}, 4),
        ({"num_processes": 1, "config": RunConfig(shards=4)}, 2),
        ({"num_processes": 1, "config": RunConfig(shards=4, threads=3)}, 3),
        ({"num_processes": 2, "nodes": plan_nodes(LaunchOptions(nnodes="2", node_rank=0, master_addr="here"))}, 2),
        ({"num_processes": 2, "environ": {"OMP_NUM_THREADS": "5"}}, 5),
        (
            {
                "num_processes": 2,
                "world": World(world_size=2, local_world_size=2, launcher="torchrun"),
                "environ": {"OMP_NUM_THREADS": "1"},  # set by torchrun, as the run knows
            },
            4,
        ),
    ],
)
def test_threads_are_counted_as_join_counts_them(situation, threads):
    situation = {"world": World(num_cores=8), "environ": {}, **situation}
    situation["world"] = replace(situation["world"], num_cores=8)
    assert cores.look_at_threads(Situation(**situation))["threads"] == threads


@pytest.mark.long
def test_processes_that_cannot_exchange_anything(examined):
    found = examined("exchange", env={"GLOO_SOCKET_IFNAME": "nosuch0"})
    assert found["state"] == FAIL
    assert "nosuch0" in found["found"]
