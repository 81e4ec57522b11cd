"""Hosts of a cluster are as separate as hosts are, and what is done to one is done to that one."""

import contextlib
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import cluster_fixtures
import pytest
from cluster import LOCAL, HostError
from cluster_fixtures import lent

PEER = Path(__file__).with_name("peer.py")
PORT = 7000


@contextlib.contextmanager
def started(host, *command, **options):
    """A command on a host, its output line by line, that is gone in the end."""
    process = host.start(command, stdout=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait(100)
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


def listener(host):
    return started(host, sys.executable, "-S", PEER, "listen", str(PORT))


def talker(host, to):
    return started(host, sys.executable, "-S", PEER, "talk", to.name, str(PORT), stdin=subprocess.PIPE)


def line(process, timeout_s=100.0):
    """The next line of a process, or None if it says nothing."""
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    return process.stdout.readline().strip() if ready else None


def say(process, what):
    process.stdin.write(f"{what}\n")
    process.stdin.flush()


def reaches(host, to):
    """Whether a new connection from one host to another comes about."""
    with listener(to) as there:
        assert line(there) == "listening"
        command = [sys.executable, "-S", PEER, "send", to.name, str(PORT), "1"]
        with contextlib.suppress(HostError):
            host.run(command, timeout_s=60)  # it gives up after two seconds
            return True
    return False


def seconds_for(host, to, size):
    with listener(to) as there:
        assert line(there) == "listening"
        return float(host.run([sys.executable, "-S", PEER, "send", to.name, str(PORT), str(size)]).stdout)


def becomes_quick(host, to, size):
    """Whether the link allows that in less than 0.9 s, when the machine has nothing else to do for
    once."""
    return any(seconds_for(host, to, size) < 0.9 for _ in range(100))


# Separate


def test_hosts_have_names_and_addresses_of_their_own_and_reach_each_other_by_name(cluster):
    assert len({host.name for host in cluster.hosts}) == len({host.address for host in cluster.hosts}) == 3
    for host in cluster.hosts:
        assert host.run(["hostname"]).stdout.strip() == host.name
        assert f" {host.address}/24 " in host.run(["ip", "-4", "addr", "show", "eth0"]).stdout
        assert sorted(host.run(["ls", "/sys/class/net"]).stdout.split()) == ["eth0", "lo"]
    first, second, _ = cluster.hosts
    with listener(second) as there:
        assert line(there) == "listening"
        with talker(first, to=second) as here:
            assert line(here) == "connected"
            assert line(there) == f"connected {first.address}"


def test_nothing_leads_out_of_the_cluster_and_the_machine_is_untouched(cluster):
    host = cluster.hosts[0]
    assert host.run(["ip", "route"]).stdout.split()[0] == "10.213.0.0/24"
    assert "unreachable" in host.run(["ip", "route", "get", "192.0.2.1"], check=False).stderr
    assert "host0" not in Path("/etc/hosts").read_text()
    assert not {"switch", "host0"} & {name for _, name in socket.if_nameindex()}
    assert cluster.hosts[0].name != socket.gethostname()


def test_a_host_sees_its_own_processes_shared_memory_disk_and_uptime_alone(cluster):
    first, second, _ = cluster.hosts
    with started(first, "sh", "-c", "echo here; exec sleep 60") as sleeping:
        assert sleeping.stdout.readline() == "here\n"  # it may take a moment to get there
        assert "sleep 60" in first.run(["ps", "ax"]).stdout
        assert "sleep 60" not in second.run(["ps", "ax"]).stdout
        assert [process.name() for process in cluster.processes()] == ["sleep"]
    for place in ("/dev/shm", LOCAL):
        first.run(["touch", f"{place}/of-the-first"])
        assert "of-the-first" in first.run(["ls", place]).stdout
        assert "of-the-first" not in second.run(["ls", place]).stdout
    read = [sys.executable, "-S", "-c", "import time; print(time.monotonic())"]
    behind = float(first.run(read).stdout)
    ahead_s = float(second.run(read).stdout) - behind
    assert 10_000 <= ahead_s < 10_100


# Commands


def test_a_signal_reaches_the_command_and_its_status_comes_back(cluster):
    host = cluster.hosts[0]
    assert host.run(["sh", "-c", "exit 7"], check=False).returncode == 7
    with started(host, "sh", "-c", "trap 'echo caught; exit 5' TERM; echo ready; sleep 60 & wait; ") as process:
        assert line(process) == "ready"
        process.terminate()
        assert line(process) == "caught"
        assert process.wait(100) == 5
        for left in host.processes():
            left.kill()
    with started(host, "sh", "-c", "while sleep 0.1; do echo on; done") as process:
        assert line(process) == "on"
        process.send_signal(signal.SIGSTOP)
        while line(process, timeout_s=1):  # what it had said before
            pass
        process.send_signal(signal.SIGCONT)
        assert line(process) == "on"
        process.terminate()
        assert process.wait(100) == -signal.SIGTERM


# Links


def test_a_cut_link_drops_packets_and_a_restored_one_carries_them_again(cluster):
    first, second, third = cluster.hosts
    with listener(second) as there, contextlib.ExitStack() as later:
        assert line(there) == "listening"
        here = later.enter_context(talker(first, to=second))
        assert line(here) == "connected"
        assert line(there).startswith("connected")
        second.cut()
        say(here, "into the void")
        assert line(there, timeout_s=1) is None
        assert here.poll() is None  # nobody told it
        assert reaches(first, third)
        assert not reaches(third, second)
        second.restore()
        assert line(there) == "into the void"
    assert reaches(third, second)


def test_a_limited_link_is_as_slow_as_said_both_ways(cluster):
    first, second, third = cluster.hosts
    assert becomes_quick(first, second, 1_000_000)
    first.limit("8mbit")  # a megabyte a second; a sixteenth of it goes through at once
    for here, there in ((first, second), (second, first)):
        assert seconds_for(here, there, 1_000_000) > 0.9
    assert becomes_quick(second, third, 1_000_000)
    first.limit(None)
    assert becomes_quick(first, second, 1_000_000)


# Power


def test_a_killed_host_leaves_no_process_says_no_goodbye_and_the_others_go_on(cluster):
    first, second, third = cluster.hosts
    with listener(first) as there:
        assert line(there) == "listening"
        with talker(second, to=first) as here, started(second, "sh", "-c", "sleep 60 & echo on; wait") as work:
            assert line(here) == "connected"
            assert line(there).startswith("connected")
            assert line(work) == "on"
            of_second = second.processes()
            assert len(of_second) >= 3
            second.kill()
            assert not [process for process in of_second if process.is_running()]
            assert work.wait(100) == here.wait(100) == -signal.SIGKILL
        assert line(there, timeout_s=1) is None  # neither the end of the connection nor a reset
    assert reaches(first, third)
    assert second.processes() == []
    for deed in (second.kill, second.cut, second.restore, lambda: second.run(["true"])):
        with pytest.raises(HostError, match="host1 is off"):
            deed()


def test_a_host_that_comes_back_has_its_name_its_address_and_its_disk(cluster):
    first, second, _ = cluster.hosts
    second.run(["touch", f"{LOCAL}/kept", "/dev/shm/lost"])
    second.limit("1mbit")
    assert reaches(first, second)  # from now on first knows where second is
    second.kill()
    second.revive()
    assert second.run(["hostname"]).stdout == "host1\n"
    assert second.run(["ls", LOCAL, "/dev/shm"]).stdout.split() == ["/dev/shm:", f"{LOCAL}:", "kept"]
    assert becomes_quick(first, second, 1_000_000)  # it would take eight seconds
    with pytest.raises(HostError, match="host1 is on"):
        second.revive()


CLOCKS = """
import ctypes, errno, threading, time
date, steady = time.time(), time.monotonic()
time.sleep(0.1)
threading.Event().wait(0.1)
until = time.time() + 0.3  # as C++ waits
moment = (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9))
condition, mutex, semaphore = (ctypes.create_string_buffer(64) for _ in range(3))  # all zero: as they begin
library = ctypes.CDLL(None, use_errno=True)
assert library.pthread_cond_timedwait(condition, mutex, moment) == errno.ETIMEDOUT
assert time.time() >= until
assert library.sem_timedwait(semaphore, moment) == -1 and ctypes.get_errno() == errno.ETIMEDOUT
print(date, time.monotonic() - steady)
"""


def test_the_date_can_differ_on_one_host_and_waits_are_as_long_as_they_were(cluster, require):
    require("cluster", None if shutil.which("cc") else "a clock of a host's own needs a C compiler")
    first, second, _ = cluster.hosts
    ahead_s = 3600
    first.set_clock(ahead_s)
    date, took_s = map(float, first.run([sys.executable, "-c", CLOCKS]).stdout.split())
    usual = float(second.run([sys.executable, "-S", "-c", "import time; print(time.time())"]).stdout)
    assert abs(usual - date + ahead_s) < 30
    assert took_s >= 0.5


# The fixture


def test_a_test_that_leaves_a_process_fails_and_the_next_gets_the_cluster_whole(cluster, monkeypatch):
    monkeypatch.setattr(cluster_fixtures, "GRACE_S", 0.2)
    first, second, third = cluster.hosts
    loan = lent(cluster)
    loan.__enter__()
    first.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 &"])
    first.environment["LEFT"] = "1"
    second.kill()
    third.cut()
    with pytest.raises(pytest.fail.Exception, match=r"process \d+: sleep 600"):
        loan.__exit__(None, None, None)
    assert cluster.processes() == []
    assert first.run(["sh", "-c", "echo $LEFT"]).stdout == "\n"
    assert reaches(second, third)
