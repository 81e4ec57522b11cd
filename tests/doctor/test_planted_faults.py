"""Each check of a machine is given the fault that it is for, planted in this machine or in a namespace of it."""

import os
import socket
import sys
import threading
from pathlib import Path

import pytest
from cluster import missing

from lockstep.base.config import RunConfig
from lockstep.launch.gpus import num_present, torch_has_cuda
from lockstep.launch.nodes import plan_nodes
from lockstep.launch.options import LaunchOptions
from lockstep.tools.doctor import cores, software
from lockstep.tools.doctor.finding import FAIL, OK, STATES, WARN, Check, Situation, ok
from lockstep.tools.doctor.table import CHECKS, examine

pytestmark = pytest.mark.timeout(60)

NUM_CPUS = len(os.sched_getaffinity(0))


def find(name, **situation):
    (check,) = [check for check in CHECKS if check.name == name]
    (finding,) = examine(Situation(**{"num_processes": 2, **situation}), 30.0, checks=[check])
    assert finding.check == name
    assert finding.host == socket.gethostname()
    assert finding.state in STATES
    assert bool(finding.remedy) == (finding.state != OK), finding
    return finding


def test_a_machine_without_faults_gets_no_failure_and_in_time(tmp_path):
    findings = examine(Situation(num_processes=1, config=RunConfig(run_dir=str(tmp_path / "run"))), 15.0)
    assert [finding for finding in findings if "no answer" in finding.found] == []
    assert [finding.check for finding in findings] == [check.name for check in CHECKS]
    assert [finding for finding in findings if finding.state == FAIL] == []
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_hangs_or_breaks_keeps_no_other_from_its_answer():
    over = threading.Event()
    hangs = Check("hangs", lambda situation: {"x": over.wait()}, lambda x: ok(""))
    breaks = Check("breaks", lambda situation: {}["x"], lambda x: ok(""))
    usual = next(check for check in CHECKS if check.name == "disk")
    try:
        late, broken, answered = examine(Situation(num_processes=1), 1.0, checks=[hangs, breaks, usual])
    finally:
        over.set()
    assert (late.state, late.found) == (WARN, "no answer within 1 s")
    assert (broken.state, broken.found[:20]) == (WARN, "no answer: KeyError:")
    assert answered.state == OK


def test_the_version_of_torch_that_a_checkout_needs_is_the_packages():
    assert f'"{software._TORCH}",' in (Path(__file__).parents[2] / "pyproject.toml").read_text()


@pytest.mark.parametrize("fault", ["old", "missing"])
def test_versions(tmp_path, monkeypatch, fault):
    info = tmp_path / "torch-1.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.13.0\n")
    if fault == "old":
        monkeypatch.syspath_prepend(str(tmp_path))
        assert find("versions").state == FAIL
        assert find("versions").found == "torch 1.13.0 (needs 2.11)"
        assert find("versions").remedy == "pip install 'torch>=2.11'"
    else:  # an environment with nothing in it but the lockstep that is examined
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        assert "numpy is not installed" in find("versions").found or find("versions").found.startswith("torch 1.13.0")


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


H100 = "0, NVIDIA H100 80GB HBM3, 535.183.01, 81559, 4"


def test_gpus_that_the_installed_torch_cannot_use(nvidia_smi):
    nvidia_smi("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", H100)
    if torch_has_cuda():
        pytest.skip("the installed torch has CUDA")
    found = find("GPUs")
    assert (found.state, found.found[:57]) == (WARN, "1 GPU(s), and the installed torch is built without CUDA: ")
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


def test_a_port_that_another_program_has():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        nodes = plan_nodes(LaunchOptions(nnodes="2", node_rank=0, master_addr=socket.gethostname(), master_port=port))
        assert find("ports", nodes=nodes).found == f"port {port} is not available: Address already in use"
        assert find("ports", nodes=nodes).state == FAIL
        assert find("ports", master_port=port).state == FAIL
        assert find("ports").state == OK


@pytest.mark.parametrize(("size", "state"), [("8m", FAIL), ("64m", WARN)])
def test_little_shared_memory(examined, require, size, state):
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
    assert found.state == WARN
    assert found.found.startswith("4 process(es) x 1 thread(s) on 1 core(s): processes wait for each other's turn")
    assert found.remedy.startswith("--nproc-per-node 1 or fewer")


def test_more_threads_than_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(8 * NUM_CPUS))
    assert find("threads", num_processes=1).remedy == f"--threads {cores.num_cores()}"


@pytest.mark.parametrize(
    ("options", "state", "words"), [("size=4m", FAIL, "a checkpoint has no room"), ("size=400m", WARN, "few")]
)
def test_a_full_disk(examined, require, tmp_path, options, state, words):
    require("cluster", missing())
    (tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o {options} small {tmp_path}/disk"
    prefix = ("unshare", "--mount", "sh", "-c", f'{mount} && exec "$0" "$@"')
    found = examined("disk", prefix, run_dir=str(tmp_path / "disk" / "run"))
    assert found["state"] == state
    assert words in found["found"]


@pytest.mark.long
def test_processes_that_cannot_exchange_anything(examined):
    found = examined("all-reduce", env={"GLOO_SOCKET_IFNAME": "nosuch0"})
    assert found["state"] == FAIL
    assert "nosuch0" in found["found"]
