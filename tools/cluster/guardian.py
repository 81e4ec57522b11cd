"""The first process of a cluster. It exits with its owner, and the entire cluster ends with it.

It is process 1 of the cluster's own process namespace, so the kernel ends every process of every
host when it exits, for whatever reason. Nothing of a cluster has a name on the machine:
namespaces, the switch, links and files disappear with the last process in them. So no cleanup is
needed, even if the owner was killed.

    guardian.py OWNER   OWNER is a pidfd, by which the guardian notices that process's exit.
                        Standard input: the name of a host to switch on, and its uptime in seconds
"""

import os
import select
import signal
import sys
from pathlib import Path

# where a cluster's files are, seen from inside; the same for every cluster
HERE = "/run/lockstep-cluster"
INIT = str(Path(__file__).with_name("init.py"))


def boot(name: str, uptime_s: str) -> None:
    """Starts a host: one process, the first in separate namespaces."""
    namespaces = ["--pid", "--net", "--uts", "--ipc", "--mount", "--time", "--monotonic", uptime_s, "--boottime", uptime_s]
    command = ["unshare", "--kill-child", *namespaces, sys.executable, "-I", "-S", INIT, name, HERE]
    os.posix_spawnp(command[0], command, os.environ)


def reap(*_: object) -> None:
    """Waits for children that have exited, including adopted ones."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main(owner: int) -> None:
    # the machine's /proc: the number that the machine knows this process by
    pid = Path("/proc/self").readlink()
    if os.system(f"mount -t tmpfs -o mode=755 cluster {HERE} && mkdir {HERE}/disks {HERE}/local {HERE}/cgroup"):
        sys.exit(f"{HERE} cannot be mounted")
    signal.signal(signal.SIGCHLD, reap)
    print(pid, flush=True)
    events = select.poll()
    events.register(owner, select.POLLIN)
    events.register(sys.stdin, select.POLLIN | select.POLLHUP)
    while True:
        if any(descriptor == owner for descriptor, _ in events.poll()):
            return
        line = os.read(sys.stdin.fileno(), 4096).decode()
        if not line:
            return
        for order in line.splitlines():
            boot(*order.split())


if __name__ == "__main__":
    main(int(sys.argv[1]))
