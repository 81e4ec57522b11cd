"""A cluster in a box: hosts on one machine that are as separate as real hosts.

    with Cluster(hosts=2) as cluster:
        cluster.hosts[0].run(["ping", "-c1", "host1"])

It needs root and Linux's namespaces (``missing`` returns what is missing). It does not touch the
machine's own network, and disappears with this process, even if it is killed (see ``guardian``).
Any number of clusters can run at the same time."""

import functools
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil

from cluster.guardian import HERE
from cluster.host import Host, HostError, end
from cluster.network import Switch, address
from cluster.slurm import Slurm

GUARDIAN = Path(__file__).with_name("guardian.py")
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "mount": "mount"}
START_S = 20.0  # what a host may take to start on a machine that is busy
# host n has been up n + 1 times this longer than the machine: clocks without a date differ
UPTIME_S = 10_000
MOST_HOSTS = 250  # the addresses of one small network

# What a cluster is made of, made once and thrown away.
TRIAL = """
ip link add switch type bridge && ip link add one type veth peer name other && ip link set one master switch &&
tc qdisc add dev one root tbf rate 1mbit burst 64kb latency 100ms && mount -t tmpfs trial /run && mount -t proc proc /proc
"""


@functools.cache
def missing() -> str | None:
    """Why there can be no cluster on this machine; None if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a cluster of namespaces needs Linux and root"
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            return f"a cluster of namespaces needs {tool} (on Debian: apt-get install {package})"
    namespaces = ["--pid", "--net", "--uts", "--ipc", "--mount", "--time", "--monotonic", "1", "--boottime", "1"]
    trial = ["unshare", "--fork", *namespaces, "sh", "-c", TRIAL]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=30, check=False)
    return f"namespaces, bridges or limits cannot be made here: {done.stderr.strip()}" if done.returncode else None


class Cluster:
    """``hosts`` hosts (host0, host1, ...) on one switch; with ``slurm``, Slurm on all of them, its
    controller on host0.

    ``gpus`` are the GPUs a host that Slurm believes in: there is nothing behind them.
    """

    def __init__(self, hosts: int = 2, *, slurm: bool = False, gpus: int = 0) -> None:
        if not 1 <= hosts <= MOST_HOSTS:
            raise ValueError(f"a cluster has 1 to {MOST_HOSTS} hosts, not {hosts}")
        self.hosts: list[Host] = []
        self.slurm: Slurm | None = None
        self._answers: dict[str, int] = {}  # the first process of each host
        self._pid: int | None = None  # of the guardian, as the machine numbers it
        self._num_hosts = hosts
        self._gpus = gpus
        self._with_slurm = slurm

    def __enter__(self) -> "Cluster":
        if reason := missing():
            raise HostError(reason)
        Path(HERE).mkdir(exist_ok=True)  # an empty place to mount on, the same for all: it stays
        self._guardian = self._start_guardian()
        self._lines = self._read()
        try:
            self._pid = int(next(self._lines))
            self._switch = Switch(self._pid)
            self.hosts = [Host(f"host{n}", address(n), self._switch, self._boot) for n in range(self._num_hosts)]
            names = "".join(f"{host.address} {host.name}\n" for host in self.hosts)
            (self.files / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
            self._order(self.hosts)
            for host in self.hosts:
                host.pid = self._answers[host.name]
                self._switch.plug(host.name, host.pid, host.address)
            if self._with_slurm:
                self.slurm = Slurm(self.hosts, self.files, gpus=self._gpus)
                self.slurm.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process on this machine that all the cluster's own processes descend from."""
        return self._guardian.pid

    @property
    def files(self) -> Path:
        """The directory that the hosts see as ``guardian.HERE``, from outside. It is in memory, and
        deleted with the cluster."""
        return Path(f"/proc/{self._pid}/root{HERE}")

    def processes(self) -> list[psutil.Process]:
        """Returns the live processes on all hosts, except the daemons of the hosts."""
        return [process for host in self.hosts for process in host.processes()]

    def mend(self) -> list[str]:
        """Undoes all changes to the hosts, and cancels the jobs in Slurm's queue. Returns these
        jobs."""
        for host in self.hosts:
            host.mend()
        return self.slurm.mend() if self.slurm else []

    def close(self) -> None:
        """What also happens when this process is killed: everything in the cluster dies."""
        if self._pid is not None:
            end(self._pid)
        self._guardian.kill()
        for stream in self._pipes:
            stream.close()
        self._guardian.wait(START_S)

    @property
    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """To the guardian, and from it."""
        assert self._guardian.stdin is not None
        assert self._guardian.stdout is not None
        return self._guardian.stdin, self._guardian.stdout

    def _start_guardian(self) -> subprocess.Popen[bytes]:
        owner = os.pidfd_open(os.getpid())
        namespaces = ["--pid", "--net", "--mount"]
        command = ["unshare", "--kill-child", *namespaces, sys.executable, "-I", "-S", str(GUARDIAN), str(owner)]
        pipe = subprocess.PIPE
        try:
            # In a session of its own: Ctrl-C is for the owner.
            return subprocess.Popen(command, pass_fds=[owner], start_new_session=True, stdin=pipe, stdout=pipe, bufsize=0)
        finally:
            os.close(owner)

    def _read(self) -> Iterator[str]:
        """The lines that the guardian and hosts say."""
        (_, stream), rest = self._pipes, b""
        while True:
            ready, _, _ = select.select([stream], [], [], START_S)
            told = os.read(stream.fileno(), 4096) if ready else b""
            if not told:
                raise HostError(f"the cluster did not reply within {START_S:g} s, or has exited (see its output above)")
            *lines, rest = (rest + told).split(b"\n")
            yield from (line.decode() for line in lines)

    def _order(self, hosts: list[Host]) -> None:
        """Switches hosts on, all at the same time."""
        orders, _ = self._pipes
        for host in hosts:
            order = f"{host.name} {UPTIME_S * (1 + self.hosts.index(host))}\n"
            orders.write(order.encode())
        for _ in hosts:
            name, pid = next(self._lines).split()
            if pid == "failed":
                raise HostError(f"{name} could not be started: what mount said is above")
            self._answers[name] = int(pid)

    def _boot(self, host: Host) -> int:
        self._order([host])
        pid = self._answers[host.name]
        self._switch.plug(host.name, pid, host.address)
        return pid
