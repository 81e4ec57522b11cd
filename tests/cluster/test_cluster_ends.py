"""However a cluster ends, nothing of it is left on the machine."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cluster import Cluster, HostError, missing
from cluster.guardian import HERE
from cluster.slurm import missing as slurm_missing

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
PAGE = ROOT / "docs" / "clusters.md"
TOOL = [sys.executable, "-m", "cluster"]
PROMPT = "cluster> "
OWNER = """
import subprocess, sys, time
from cluster import Cluster
with Cluster(hosts=2) as cluster:
    for host in cluster.hosts:
        host.run(["sh", "-c", "(setsid sleep 600 &) ; (sleep 600 &)"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while [process.name() for process in cluster.processes()] != ["sleep"] * 4:
        time.sleep(0.01)
    print(cluster.pid, flush=True)
    input()
    {end}
"""
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
ENDS = {"an exception": "raise RuntimeError('on purpose')"}


@pytest.fixture(autouse=True)
def _possible(require, monkeypatch):
    require("cluster", missing())
    # For the processes that have a cluster here.
    monkeypatch.setenv("PYTHONPATH", f"{TOOLS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep))


def on_the_machine():
    """What a cluster could leave on it, processes and temporary files apart."""
    mounts, names = Path("/proc/self/mounts").read_text(), Path("/etc/hosts").read_text()
    named = [sorted(path.name for path in place.iterdir()) for place in (Path("/run/netns"), Path(HERE)) if place.exists()]
    return mounts, names, named, socket.if_nameindex(), socket.gethostname()


def family(pid):
    """The processes of a cluster, whose first one is ``pid``."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def assert_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=100)
    assert not alive


@contextlib.contextmanager
def owner(end, tmp_path):
    """A process that has a cluster, and ends in this way when it gets a line."""
    (temporary := tmp_path / "temporary").mkdir()
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    command = [sys.executable, "-c", OWNER.format(end=end)]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}, **streams) as process:
        try:
            yield process, family(int(process.stdout.readline()))
        finally:
            process.kill()


@pytest.mark.parametrize("end", [*SIGNALS, *ENDS])
def test_nothing_is_left_however_the_owner_ends(end, tmp_path):
    with Cluster(hosts=1):
        pass  # the empty directory that clusters are mounted on is there from the first one on
    before = on_the_machine()
    with owner(ENDS.get(end, "time.sleep(600)"), tmp_path) as (process, of_cluster):
        assert sum(process.name() == "sleep" for process in of_cluster) == 4
        if end in SIGNALS:
            process.send_signal(SIGNALS[end])
        else:
            process.communicate("end\n", timeout=100)
        process.wait(100)
        assert_gone(of_cluster)
    assert on_the_machine() == before
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_cluster_dies_with_its_guardian_and_says_so_at_the_next_deed():
    with Cluster(hosts=2) as cluster:
        of_cluster = family(cluster.pid)
        os.kill(of_cluster[1].pid, signal.SIGKILL)
        assert_gone(of_cluster)
        with pytest.raises((HostError, RuntimeError)):
            cluster.hosts[0].kill()


# The tool


def tool(told, *options, cwd=None):
    return subprocess.run([*TOOL, *options], input=told, capture_output=True, text=True, timeout=400, cwd=cwd)


def test_the_prompt_does_what_it_is_told_and_survives_what_it_does_not_understand():
    deeds = ["run host1 hostname", "limit host1", "cut host9", "kill host2", "hosts", "revive host2", "run host2 hostname"]
    done = tool("\n".join([*deeds, "quit", ""]), "--hosts", "3")
    assert done.returncode == 0, done.stderr
    assert "cluster> host1\n" in done.stdout
    assert "try help limit" in done.stdout
    assert "'host9'" in done.stdout
    assert "host0, host1, host2" in done.stdout
    assert "host2    10.213.0.3     off" in done.stdout
    assert "cluster> host2\n" in done.stdout


def test_a_line_that_ends_with_a_backslash_is_continued_on_the_next():
    done = tool("run host1 echo one \\\n  two\nquit\n", "--hosts", "2")
    assert done.returncode == 0, done.stderr
    assert "cluster> one two\n" in done.stdout


link_number = re.compile(r"(?<=@if)\d+ *").sub  # the kernel's, another one every time
digest = re.compile(r"\b[0-9a-f]{64}\b")


def plain(line):
    return digest.sub("DIGEST", link_number("", line.replace(PROMPT, "").strip()))


def shown():
    """The talks with the prompt that the documentation shows: what is said, and the lines that come
    back. Each once."""
    pages = PAGE.read_text()
    talks = {}
    for kind, block in re.findall(r"^```text cluster( slurm)?\n(.*?)^```", pages, re.M | re.S):
        lines = block.replace("\\\n", "\\\0").splitlines()
        deeds = tuple(line.removeprefix(PROMPT).replace("\0", "\n") for line in lines if line.startswith(PROMPT))
        talks.setdefault((kind, deeds), []).extend(plain(line) for line in lines if not line.startswith(PROMPT))
    for number, ((kind, deeds), answers) in enumerate(talks.items()):
        said = " ".join(deeds)
        # Talks with runs cost minutes. What they start has tests of its own, in
        # test_nodes_on_hosts.py.
        marks = [pytest.mark.longest] if "lockstep run" in said else []
        yield pytest.param(kind, deeds, answers, marks=marks, id=f"{number}{kind}")


@pytest.mark.parametrize(("kind", "deeds", "answers"), list(shown()))
def test_the_prompt_answers_as_the_documentation_shows(kind, deeds, answers, require):
    if kind:
        require("slurm", slurm_missing())
    done = tool("\n".join([*deeds, "quit", ""]), *(["--slurm"] if kind else ["--hosts", "3"]), cwd=ROOT)
    told = [plain(line) for line in done.stdout.splitlines()]
    assert [answer for answer in answers if answer not in told] == [], done.stdout
    assert len(set(digest.findall(done.stdout))) <= 1  # of a run and of one that was disturbed
    assert "error" not in done.stdout + done.stderr


def test_a_ctrl_c_while_a_command_runs_ends_the_command_alone():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(TOOL, start_new_session=True, **pipes) as process:
        process.stdin.write("run host0 echo on; exec sleep 600\n")
        while process.stdout.readline() != f"{PROMPT}on\n":
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, _ = process.communicate("run host1 hostname\nquit\n", timeout=100)
        assert f"{PROMPT}host1\n" in out
        assert process.returncode == 0
