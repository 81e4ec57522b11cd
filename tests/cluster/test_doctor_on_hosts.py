"""``lockstep doctor`` over hosts: faults that show between hosts alone, planted in one of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep

pytestmark = [pytest.mark.timeout(150), pytest.mark.long]


@pytest.fixture
def doctors(cluster, tmp_path):
    """``doctors(*options)``: what the doctors of two hosts say: for each its status and the findings it prints."""

    def call(*options):
        numbered = [("--node-rank", str(number)) for number in range(2)]
        where = ("--nnodes", "2", "--master-addr", "host0", "--rdzv-secret-file", str(tmp_path / "secret"))
        processes = []
        (tmp_path / "secret").write_text("a secret of these tests, long enough")
        (tmp_path / "secret").chmod(0o600)
        for host, own in zip(cluster.hosts, numbered, strict=False):
            command = [sys.executable, "-m", "lockstep", "doctor", "--json", *where, *own, *options]
            processes.append(host.start(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        try:
            told = [process.communicate(timeout=100) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        assert [err for out, err in told if out and not out.startswith("[")] == []
        return [
            (process.returncode, json.loads(out) if out else err)
            for process, (out, err) in zip(processes, told, strict=True)
        ]

    return call


def states(findings):
    return {finding["check"]: finding["state"] for finding in findings if finding["check"] != "threads"}


def with_version(tmp_path, name, version):
    """A Python path on which a distribution seems to have another version."""
    info = tmp_path / "path" / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return f"{tmp_path / 'path'}:{Path(lockstep.__file__).parents[1]}"


def test_hosts_without_faults_are_told_so_once(doctors):
    (status, findings), (other, nothing) = doctors()
    assert (status, other) == (0, 0)
    assert "host1 is node 1 of 2" in nothing
    assert {state for state in states(findings).values()} == {"ok"}, findings
    assert {finding["host"] for finding in findings} == {"host0", "host1", ""}


def test_a_clock_a_link_and_a_version_that_are_wrong_on_one_host(cluster, doctors, tmp_path):
    host = cluster.hosts[1]
    host.set_clock(-120)
    host.limit("10mbit")
    host.environment["PYTHONPATH"] = with_version(tmp_path, "numpy", "99.1")
    (status, findings), (other, _) = doctors()
    assert (status, other) == (1, 1)
    found = {finding["check"]: finding for finding in findings}
    assert found["clocks"]["found"].startswith("the clock of host0 is 120 s ahead of that of host1")
    assert found["all-reduce"]["state"] == "warn"
    assert found["all-reduce"]["values"]["bandwidth_bytes_s"] < 3e6
    assert found["same versions"]["state"] == "fail"
    assert found["same versions"]["found"].startswith("numpy is ")
    assert found["same versions"]["found"].endswith(" on host0, and 99.1 on host1")


def test_a_run_directory_that_one_host_does_not_see(cluster, doctors, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (tmp_path / "local").mkdir()
    cluster.hosts[1].replace(shared, tmp_path / "local")
    (status, findings), (other, _) = doctors("--run-dir", str(shared / "run"))
    assert (status, other) == (1, 1)
    found = {finding["check"]: finding for finding in findings}
    assert found["shared run directory"]["found"].startswith(f"host1 cannot see in {shared} what rank 0 wrote there")
    assert found["shared run directory"]["values"] == {"blind": ["host1"]}


def test_a_host_whose_name_another_does_not_know(cluster, doctors, tmp_path):
    (tmp_path / "wrong").write_text("127.0.0.1 localhost\n10.213.0.1 host0\n10.213.0.77 host1\n")
    cluster.hosts[0].replace(Path("/etc/hosts"), tmp_path / "wrong")
    (status, findings), (other, _) = doctors()
    assert (status, other) == (1, 1)
    found = {finding["check"]: finding for finding in findings}
    assert found["host names"]["state"] == "fail"
    assert found["host names"]["found"].startswith("host0 does not know host1: it resolves to 10.213.0.77")


def test_hosts_that_do_not_meet_have_their_own_findings_and_that_one(cluster, doctors):
    cluster.hosts[1].cut()
    for status, findings in doctors("--timeout", "8"):
        assert status == 1
        assert states(findings)["meeting"] == "fail"
        assert states(findings)["versions"] == "ok"


def test_every_task_of_srun_is_a_process_of_the_examination(slurm_cluster, tmp_path):
    command = ["srun", "--nodes", "2", "--ntasks-per-node", "2", sys.executable, "-m", "lockstep", "doctor", "--json"]
    done = slurm_cluster.hosts[0].run(command, cwd=tmp_path, timeout_s=100)
    findings = json.loads(done.stdout)
    found = {finding["check"]: finding for finding in findings}
    assert found["meeting"]["found"] == "2 hosts have met, with 4 processes"
    assert found["all-reduce"]["values"]["world_size"] == 4
    assert {finding["host"] for finding in findings} == {"host0", "host1", ""}
    assert found["Slurm"]["values"]["job"] is not None
