"""``lockstep doctor`` over hosts: faults that show between hosts alone, planted in one of them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import unwrapped

BETWEEN = ("rendezvous", "exchange")

pytestmark = [pytest.mark.timeout(150), pytest.mark.long]


@pytest.fixture
def doctors(cluster, tmp_path):
    """``doctors(*options)``: what the doctors of two hosts say: for each its status and the
    findings it prints."""

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


def plain(text):
    text = re.sub(r"[0-9][0-9.]*", "N", text)
    return [re.sub(r" +", " ", line) for line in text.splitlines()]


def test_a_slow_link_between_hosts_is_found_and_said_by_the_first_host(cluster, doctors):
    cluster.hosts[1].limit("10mbit")
    (status, findings), (other, said) = doctors()
    assert (status, other) == (0, 0)
    assert "host1 is node 1 of 2" in said  # and no findings: the first host prints all
    assert {finding["host"] for finding in findings} == {"host0", "host1", ""}
    found = {finding["check"]: finding for finding in findings}
    assert found["rendezvous"]["found"] == "2 machines met, with 2 processes"
    assert found["exchange"]["state"] == "warn"
    assert found["exchange"]["values"]["bandwidth_bytes_s"] < 3e6
    # docs/doctor.md shows these, but for numbers and paths.
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    shown = re.search(r"<!-- between hosts -->\n```text\n(.*?)```", page, flags=re.DOTALL)[1]
    printed = "\n".join(f"{check} {found[check]['state']} {found[check]['found']}" for check in BETWEEN)
    assert plain(unwrapped(shown)) == plain(printed)


@pytest.mark.longest
def test_hosts_that_do_not_meet_have_their_own_findings_and_that_one(cluster, doctors):
    cluster.hosts[1].cut()
    for status, findings in doctors("--timeout", "3"):
        assert status == 1
        found = {finding["check"]: finding["state"] for finding in findings}
        assert (found["GPUs"], found["rendezvous"]) == ("ok", "fail")


@pytest.mark.longest
def test_tasks_of_srun_are_the_processes_of_the_examination_and_find_nothing_between_hosts(slurm_cluster, tmp_path):
    command = ["srun", "--nodes", "2", "--ntasks-per-node", "2", sys.executable, "-m", "lockstep", "doctor", "--json"]
    done = slurm_cluster.hosts[0].run(command, cwd=tmp_path, timeout_s=100)
    findings = json.loads(done.stdout)
    found = {finding["check"]: finding for finding in findings}
    assert found["rendezvous"]["found"] == "2 machines met, with 4 processes"
    assert found["exchange"]["values"]["world_size"] == 4
    assert {finding["host"] for finding in findings} == {"host0", "host1", ""}
    assert {found[check]["state"] for check in BETWEEN[:-1]} == {"ok"}
    assert [finding for finding in findings if finding["state"] == "fail"] == []
