"""The first process of a cluster: all that is in the cluster dies with it, and it dies with its
owner.

It is process 1 of the cluster's own process namespace, so that the kernel ends every process of
every host when it ends, for whatever reason. Nothing of a cluster has a name on the machine:
namespaces, the switch, links and files are gone with the last process in them, and there is nothing
to sweep up, however the owner ended.

    guardian.py OWNER   on its standard input: the name of a host to switch on, and for how many seconds it has been up;
                        OWNER is a pidfd, and tells when that process is gone
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
    """Start a host: one process, the first in namespaces of its own."""
    namespaces = ["--pid", "--net", "--uts", "--ipc", "--mount", "--time", "--monotonic", uptime_s, "--boottime", uptime_s]
    command = ["unshare", "--kill-child", *namespaces, sys.executable, "-I", "-S", INIT, name, HERE]
    os.posix_spawnp(command[0], command, os.environ)


def reap(*_: object) -> None:
    """Take leave of children that have ended, adopted ones too."""
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
