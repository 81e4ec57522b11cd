"""The first process of a host: it creates the host's view of the machine, then waits for orphans.

    init.py NAME HERE   prints NAME, and the number of this process on the machine

When it is killed, the kernel immediately kills every process of the host.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

# /sys shows the network of whoever mounts it. The control groups below it stay as they are: slurmd
# needs them.
MOUNTS = """
mount --bind {here}/disks/{name} {here}/local
mount --bind {here}/hosts /etc/hosts
mount -t tmpfs shm /dev/shm
mount --rbind /sys/fs/cgroup {here}/cgroup
mount -t sysfs sysfs /sys
mount --rbind {here}/cgroup /sys/fs/cgroup
umount --lazy {here}/cgroup
mount -t proc proc /proc
"""


def reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(name: str, here: str) -> None:
    pid = Path("/proc/self").readlink()  # before /proc is the host's own
    Path("/proc/sys/kernel/hostname").write_text(name)
    # the disk of a host that comes back is as it was
    Path(here, "disks", name).mkdir(exist_ok=True)
    failed = os.system("set -e" + MOUNTS.format(name=name, here=here))
    print(name, "failed" if failed else pid, flush=True)
    if failed:
        return
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    signal.signal(signal.SIGCHLD, reap)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
