"""What platforms such as Kubernetes do to launchers: names that resolve late, variables that only a
launcher reads, and replaced pods."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from launch_helpers import free_port
from launchers import python_here

__all__ = ["python_here"]

JOINS = """
import lockstep
with lockstep.join(run_dir="run", progress="off", timeout_s=60) as team:
    print(f"rank {team.rank} of {team.world_size}")
"""
POD = {"MASTER_ADDR": "pod-0", "MASTER_PORT": "29500"}


@pytest.fixture
def in_pod(python_here, tmp_path, monkeypatch):
    """``in_pod(environ)``: a script that joins, started by python: status, standard error, and the
    codes of notices."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    file = tmp_path / "reports.jsonl"

    def run(environ):
        (tmp_path / "script.py").write_text(JOINS)
        ended = python_here("script.py", env={**environ, "LOCKSTEP_REPORTS": str(file)})
        reports = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return ended.returncode, ended.stderr, [report["code"] for report in reports if report["kind"] == "notice"]

    return run


@pytest.mark.parametrize("environ", [{"PET_NNODES": "2"}, {**POD, "RANK": "1"}])
def test_a_script_that_python_starts_in_one_of_several_pods_is_refused_with_the_command(in_pod, environ):
    status, said, _ = in_pod(environ)
    assert status == 1
    assert "ConfigError" in said
    assert "lockstep run" in said


def test_variables_of_a_cloud_are_named_and_the_training_goes_on(in_pod):
    status, said, codes = in_pod({"DSTACK_NODES_NUM": "2"})
    assert (status, codes) == (0, ["one-of-several"]), said
    assert "--node-rank $DSTACK_NODE_RANK" in said
    assert "--master-addr $DSTACK_MASTER_NODE_IP" in said


@pytest.mark.long
def test_a_number_of_threads_that_the_platform_sets_is_named_and_compared_on_a_resume(python_here, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "script.py").write_text("import lockstep\nlockstep.join(run_dir='run', progress='off', shards=2)\n")
    file = tmp_path / "reports.jsonl"

    def notices(**variables):
        file.write_text("")
        ended = python_here("script.py", env={"LOCKSTEP_CORES": "10", "LOCKSTEP_REPORTS": str(file), **variables})
        assert ended.returncode == 0, ended.stderr
        return [json.loads(line)["code"] for line in file.read_text().splitlines()]

    assert notices(OMP_NUM_THREADS="2") == ["threads-from-environment"]
    assert notices(OMP_NUM_THREADS="2") == []
    assert notices(OMP_NUM_THREADS="3") == ["threads-from-environment"]
    assert notices() == []


BY_NAME = """
set -e
mount --bind hosts /etc/hosts
pod() { # RANK COMMAND...
    local rank=$1; shift
    env PET_NODE_RANK=$rank RANK=$rank "$@" > pod$rank.log 2>&1
}
pod 1 "$@" & second=$!
pod 0 "$@" & first=$!
for _ in $(seq 600); do # until the ones that are to wait do
    [ "$(cat pod?.log | grep -c 'waiting for the host name')" -lt $WAITING ] || break
    sleep 0.1
done
echo "127.0.0.1 pod-0.train" > hosts
wait $first && wait $second
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "launcher", "waiting"), [("", "lockstep", 2), ("", "python", 2), ("192.0.2.77 pod-0.train", "lockstep", 1)]
)
def test_pods_whose_name_resolves_late_or_still_means_the_pod_before_meet(require, tmp_path, before, launcher, waiting):
    is_root = os.geteuid() == 0 and shutil.which("unshare")
    require("cluster", None if is_root else "a file system of its own needs root, and unshare")
    (tmp_path / "hosts").write_text(before + "\n")
    (tmp_path / "script.py").write_text(JOINS.replace('run_dir="run", ', 'run_dir="run", strategy="exact", '))
    where = {"MASTER_ADDR": "pod-0.train", "MASTER_PORT": str(free_port())}
    if launcher == "lockstep":
        environ = {"PET_NNODES": "2", **{f"PET_{name}": value for name, value in where.items()}}
        command = [sys.executable, "-m", "lockstep._cli.main", "run", "--nproc-per-node", "1", "script.py"]
    else:
        environ, command = {"WORLD_SIZE": "2", **where}, [sys.executable, "script.py"]
    ended = subprocess.run(
        ["unshare", "-m", "bash", "-c", BY_NAME, "pods", *command],
        cwd=tmp_path,
        env={**os.environ, **environ, "WAITING": str(waiting)},
        stdin=subprocess.DEVNULL,
        timeout=100,
    )
    logs = [(tmp_path / f"pod{rank}.log").read_text() for rank in (0, 1)]
    assert ended.returncode == 0, logs
    assert [f"rank {rank} of 2" in log for rank, log in enumerate(logs)] == [True, True], logs


AS_FIRST = """
import os, signal, sys, time
if os.fork():
    os.execv(sys.executable, [sys.executable, "-m", "lockstep._cli.main", "run", "--nnodes", "2", "--node-rank", "1",
        "--master-addr", "pod-0.train", "script.py"])
while "waiting for the host name" not in open("pod.log").read():
    time.sleep(0.05)
os.kill(1, signal.SIGTERM)
"""


@pytest.mark.long
@pytest.mark.timeout(50)
def test_the_first_process_of_a_pod_that_waits_for_a_name_ends_on_sigterm(require, tmp_path):
    is_root = os.geteuid() == 0 and shutil.which("unshare")
    require("cluster", None if is_root else "a process namespace of its own needs root, and unshare")
    (tmp_path / "script.py").write_text(JOINS)
    with (tmp_path / "pod.log").open("w") as log:
        ended = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", AS_FIRST],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stderr=log,
            timeout=40,
        )
    assert ended.returncode == 143, (tmp_path / "pod.log").read_text()
    assert "stopped by SIGTERM" in (tmp_path / "pod.log").read_text()
