"""Two hosts on this machine with one slow link between them: network namespaces, and a token bucket
at each end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

from _crew import Host

_BURST = "256kb"
_LATENCY = "400ms"


@contextlib.contextmanager
def slow_link(megabits: int) -> Iterator[list[Host]]:
    """Two hosts that are connected at ``megabits`` per second in each direction. They end after the
    block, also after an error."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        raise SystemExit("the slow link needs root, `ip` and `tc` (on Debian: iproute2), to make network namespaces")
    names = [f"lockstep-bench-{os.getpid()}-{end}" for end in "ab"]
    interfaces = [f"lb{os.getpid() % 100000}{end}" for end in "ab"]
    hosts = []
    # so that the hosts are taken away then too
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", interfaces[0], "type", "veth", "peer", "name", interfaces[1])
        for number, (name, interface) in enumerate(zip(names, interfaces, strict=True), 1):
            address = f"10.111.0.{number}"
            _run("ip", "link", "set", interface, "netns", name)
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", interface)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", interface, "up")
            limit = ("rate", f"{megabits}mbit", "burst", _BURST, "latency", _LATENCY)
            _run("tc", "-n", name, "qdisc", "add", "dev", interface, "root", "tbf", *limit)
            hosts.append(Host(("ip", "netns", "exec", name), address, interface))
        yield hosts
    finally:
        signal.signal(signal.SIGTERM, before)
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
