"""A host of a cluster, which its processes see as a machine.

It has its own network, host name, processes, /proc, /sys, /dev/shm, shared memory and uptime. Files
are shared, as on a cluster with one file system, except ``LOCAL``, its own disk, and the paths that
``hide`` and ``replace`` change."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from cluster.guardian import HERE
from cluster.network import Switch

# on every host another directory; a host that comes back finds its own as it was
LOCAL = Path(HERE, "local")
CLOCK = Path(__file__).with_name("clock.c")


class HostError(RuntimeError):
    """A command on a host failed, or the host is not in a state to do what was asked."""


class Command(subprocess.Popen[Any]):
    """A command on a host. Signals reach the command, its status is the command's, and its death by
    signal too.

    ``pid`` is that of a process on the machine that waits for it.
    """

    def send_signal(self, sig: int) -> None:
        while self.poll() is None:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            if children:
                os.kill(int(children[0]), sig)
                if sig == signal.SIGCONT:
                    os.kill(self.pid, sig)  # it had stopped with the command
                return
            time.sleep(0.001)  # not there yet: it is on its way in


class Host:
    """One host. ``environment`` is added to that of every command, and may be changed at any
    time."""

    def __init__(self, name: str, address: str, switch: Switch, boot: Callable[["Host"], int]) -> None:
        self.name = name
        self.address = address
        self.environment: dict[str, str] = {}
        self.daemons: set[str] = set()  # names of processes that are part of the host
        # what starts them, when the host comes back
        self.at_boot: list[Callable[[Host], None]] = []
        # of its first process, as the machine numbers it; None: it is off
        self.pid: int | None = None
        self._switch = switch
        self._boot = boot
        self._covered: list[Path] = []  # what hide and replace lie over

    def __repr__(self) -> str:
        return f"Host({self.name}, {self.address}, {'off' if self.pid is None else self.pid})"

    # What runs on it

    def start(self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, **options: Any) -> Command:
        """Starts a command, with ``options`` of subprocess.Popen. It ends with the host at the
        latest."""
        where = str(Path(options.pop("cwd", None) or Path.cwd()).absolute())
        enter = ["nsenter", "--target", str(self._on()), "--all", f"--wdns={where}"]
        # Set when inside: what LD_PRELOAD names may be there alone.
        variables = [f"{name}={value}" for name, value in {**self.environment, **(env or {})}.items()]
        return Command([*enter, "--", "env", *variables, *map(str, command)], **options)

    def run(
        self, command: Sequence[str | Path], *, timeout_s: float = 60.0, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, and return what it printed.

        Raises HostError with all its output if it fails (unless ``check`` is false), or has not
        ended in time."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.start(command, text=True, **{**streams, **options})
        what = f"{' '.join(map(str, command))} on {self.name}"
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException as error:  # also the time limit of a test, and Ctrl-C
            with contextlib.suppress(psutil.NoSuchProcess):
                for member in psutil.Process(process.pid).children(recursive=True):
                    kill(member)
            process.wait(10)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            out, err = ((kept or b"").decode(errors="replace") for kept in (error.stdout, error.stderr))
            raise HostError(f"{what}: not done after {timeout_s:g} s\n-- stdout\n{out}\n-- stderr\n{err}") from None
        finally:
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
        if check and process.returncode:
            raise HostError(f"{what} ended with status {process.returncode}\n-- stdout\n{out}\n-- stderr\n{err}")
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    def processes(self) -> list[psutil.Process]:
        """Returns the live processes on the host, except its daemons."""
        return [process for process, name in self.inhabitants() if name not in self.daemons]

    def inhabitants(self) -> list[tuple[psutil.Process, str]]:
        """All its live processes but the first, with their names."""
        if self.pid is None:
            return []
        found, mine = [], Path(f"/proc/{self.pid}/ns/pid").readlink()
        for process in psutil.process_iter():
            try:
                here = process.pid != self.pid and Path(f"/proc/{process.pid}/ns/pid").readlink() == mine
                if here and process.status() != psutil.STATUS_ZOMBIE:
                    found.append((process, process.name()))
            except (psutil.Error, OSError):  # gone meanwhile
                continue
        return found

    # Its cable

    def cut(self) -> None:
        """Cuts the link silently: packets are lost in both directions."""
        self._on()
        self._switch.cut(self.name)

    def restore(self) -> None:
        """Carry packets again."""
        self._on()
        self._switch.restore(self.name)

    def limit(self, rate: str | None) -> None:
        """Let at most this through its link, each way (``"10mbit"``); None lifts the limit."""
        self._switch.limit(self.name, self._on(), rate)

    # Its power

    def kill(self) -> None:
        """Simulates a power loss: removes the link first, so that the kernel cannot close
        connections, and then kills all processes."""
        pid = self._on()
        self._switch.unplug(self.name)
        self.pid = None
        self._covered.clear()
        end(pid)

    def revive(self) -> None:
        """Switch it on. After ``kill``, what it had hidden or replaced is as on the others, and its
        link is whole."""
        if self.pid is not None:
            raise HostError(f"{self.name} is on: kill it first")
        self.pid = self._boot(self)
        for start_daemon in self.at_boot:
            start_daemon(self)

    def mend(self) -> None:
        """Switch it on if it is off, and undo what was done to its link and to what it sees."""
        if self.pid is None:
            self.revive()
        self.restore()
        self.limit(None)
        for path in reversed(self._covered.copy()):
            self.show(path)

    # What it sees

    def hide(self, directory: Path) -> None:
        """Show an empty directory in its place, that cannot be written to, until ``show``."""
        self.run(["mount", "-t", "tmpfs", "-o", "ro", "hidden", directory])
        self._covered.append(directory)

    def replace(self, path: Path, by: Path) -> None:
        """Show another file or directory in its place, until ``show``: another version of it, on
        this host alone."""
        self.run(["mount", "--bind", by, path])
        self._covered.append(path)

    def show(self, path: Path) -> None:
        """Undoes ``hide`` or ``replace`` of this path. Fails while a process on the host uses
        it."""
        self.run(["umount", path])
        self._covered.remove(path)

    def set_clock(self, ahead_s: int) -> None:
        """Let the date be ahead of the others' by whole seconds (behind, if negative) for commands
        that start from now on.

        Dates alone: durations are right, and files are dated by the machine's clock, as those on a
        shared disk are. See ``clock.c``; programs that do without the C library do not see it.
        """
        library = Path(HERE, "clock.so")
        if not shutil.which("cc"):
            raise HostError("a clock of a host's own needs a C compiler (on Debian: apt-get install gcc)")
        self.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, CLOCK, "-ldl"])
        self.environment |= {"LD_PRELOAD": str(library), "CLUSTER_CLOCK_AHEAD_S": str(ahead_s)}

    def _on(self) -> int:
        if self.pid is None:
            raise HostError(f"{self.name} is off: revive it first")
        return self.pid


def kill(process: psutil.Process) -> None:
    """Kill a process, if it is still there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def end(pid: int, timeout_s: float = 10.0) -> None:
    """Kill the first process of a namespace, and return when all that is in it is dead.

    The kernel does it when unshare, its parent, is killed; killed itself, it would leave unshare to
    complain about that. Raises HostError if it is still there after ``timeout_s`` seconds.
    """
    try:
        gone = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with contextlib.suppress(psutil.NoSuchProcess):
            if (parent := psutil.Process(pid).parent()) is not None:
                parent.kill()
        if not select.select([gone], [], [], timeout_s)[0]:
            raise HostError(f"process {pid}, the first of its namespace, is still there {timeout_s:g} s after SIGKILL")
    finally:
        os.close(gone)
