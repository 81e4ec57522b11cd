"""Launches that are played: the launcher's supervision is real, and its workers, fork server,
signals and clock are the test's. No process is started, and no time passes: where the launcher
would wait, its clock goes on to what happens next."""

import contextlib
import json
import math
import os
import selectors
import signal
import socket
import time
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace

from lockstep._base.errors import LaunchError
from lockstep._base.stopping import SAME_S
from lockstep._launch import failures, forked, signals, supervise
from lockstep._launch.failures import End, Failure
from lockstep._launch.observer import JoinedRun, Observer
from lockstep._launch.signals import Interrupts
from lockstep._launch.spec import LaunchSpec, Script

FIRST_PID = 10_000_000  # above every process id of the kernel
JOINED = JoinedRun(newest=7)
LATER_S = SAME_S + 0.1  # after which a signal is a second one


class HangError(AssertionError):
    """Nothing would ever happen again, and the launcher waits."""


@dataclass
class Worker:
    """A rank, as the launcher sees it. ``on``: what it does at a signal."""

    launch: "PlayedLaunch"
    rank: int
    key: int
    fd: int
    catches: set[int] = field(default_factory=set)
    got: list[tuple[int, float]] = field(default_factory=list)
    """The signals that it was sent, and when."""
    is_there: bool = False
    on: dict[int, object] = field(default_factory=dict)

    @property
    def pid(self):
        return FIRST_PID + self.rank

    def forked(self):
        self.is_there = True
        self.sends(pid=self.pid)

    def sends(self, **message):
        os.write(self.fd, f"\n{json.dumps(message, default=asdict)}\n".encode())

    def watches(self, *numbers):
        self.catches = set(numbers)
        self.sends(watches=list(numbers))

    def reports(self, kind="ValueError", message="boom", **more):
        """The failure of its program; its exit handlers run."""
        self.sends(failure=Failure(rank=self.rank, time_s=self.launch.wall_s, kind=kind, message=message, **more))

    def echoes(self, **more):
        self.reports("DistBackendError", is_consequence=True, **more)

    def finishes(self):
        self.sends(end=End(how="the script finished", time_s=self.launch.wall_s))

    def exits(self, status=0):
        if self.is_there:
            self.is_there = False
            self.launch.server.says(key=self.key, status=status)

    def fails(self, status=1, **more):
        self.reports(**more)
        self.exits(status)

    def saves(self, status=75):
        self.sends(stopped_with=status)
        self.exits(status)

    def gets(self, number):
        if not self.is_there:
            raise ProcessLookupError
        self.got.append((int(number), round(self.launch.now, 6)))
        if number == signal.SIGKILL and number not in self.on:
            self.exits(-signal.SIGKILL)
        elif number in self.on:
            self.on[number](self)


class PlayedServer:
    """The fork server, as the launcher sees it."""

    def __init__(self, launch):
        self._launch = launch
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.is_ready = True
        self.is_closed = False
        self.num_asked = 0
        self.asked = []
        """The rank of each request, and when it came."""

    def fileno(self):
        return self._ours.fileno()

    def says(self, **message):
        self._theirs.send(json.dumps(message).encode())

    def receive(self):
        message = json.loads(self._ours.recv(65536))
        if message.get("died"):
            raise LaunchError("the fork server exited unexpectedly")
        self.is_ready = self.is_ready or "ready" in message
        return message

    def start_worker(self, spec_path, rank, fds):
        self.num_asked += 1
        self.asked.append((rank, self._launch.now))
        worker = Worker(self._launch, rank, self.num_asked, os.dup(fds[-1]))
        self._launch.workers[rank] = worker
        self._launch.asked(worker)
        return worker.key

    def close(self):
        self.is_closed = True

    def release(self):
        self._ours.close()
        self._theirs.close()


class _Selector(selectors.DefaultSelector):
    """Waits on the clock of a launch."""

    launch = None

    def select(self, timeout=None):
        while not (ready := super().select(0)):
            now = self.launch.now
            until = math.inf if timeout is None else now + max(timeout, 0.0)
            if self.launch.next_at > until or self.launch.next_at == math.inf:
                if until == math.inf:
                    raise HangError(f"the launcher waits for ever, at {now} s")
                self.launch.now = max(until, math.nextafter(now, math.inf))
                return []
            timeout = None if timeout is None else max(0.0, until - self.launch.next_at)
            self.launch.play_next()
        return ready


class Watcher:
    """What observers of the launch were asked and told."""

    def __init__(self, launch):
        self._launch = launch
        self.ended = []  # ranks and statuses
        self.lingered = []  # ranks, and when they were reported
        self.is_closed = False
        self.num_joined = 0

    def tell(self, what):
        what(SimpleNamespace(ended=lambda *end: self.ended.append(end), close=self._close))

    def ask(self, what):
        def last_seen(rank):
            return f"last words of {rank}"

        def linger(ranks):
            self.lingered += [(rank, round(self._launch.now, 6)) for rank in ranks]
            return ranks

        def joined():
            self.num_joined += 1
            return JOINED

        answers = {
            "last_seen": last_seen,
            "linger": linger,
            "joined": joined,
            "with_cause": lambda failure: None,
            "mismatch": lambda reported: None,
            "who_waits": lambda echoes: f"{sorted(echoes)} wait",
        }
        return what(SimpleNamespace(**{**answers, **self._launch.observed}))

    def _close(self):
        self.is_closed = True


class PlayedLaunch:
    """A launch of ``nproc`` workers. Say what happens by ``at``, then ``run`` it.

    ``asked``: called with each worker that the launcher requests; by default it is forked at once.
    """

    def __init__(self, directory, monkeypatch, nproc=2, **spec):
        self.now, self._began_s = 0.0, time.time()
        self.workers, self._due, self._num_planned, self.swept = {}, [], 0, []
        self.server = PlayedServer(self)
        self.interrupts = Interrupts(())
        self.asked = Worker.forked
        self.end = None
        """By which observers end the launch."""
        self.observed = {}
        """Other answers of the observers, by method."""
        self.num_handed_over = 0
        script = Script(target="script.py", args=())
        self.spec = LaunchSpec(program=script, nproc=nproc, private_dir=str(directory), environ={}, **spec)
        clock = SimpleNamespace(monotonic=lambda: self.now)
        selector = type("Selector", (_Selector,), {"launch": self})
        from_status, unforeseen_end = failures.from_status, failures.unforeseen_end
        names = SimpleNamespace(DefaultSelector=selector, EVENT_READ=selectors.EVENT_READ)
        for module, name, new in (
            (supervise, "time", clock),
            (signals, "time", clock),
            (supervise, "selectors", names),
            (supervise, "Observers", {Observer: self._observe}),
            (supervise, "catches", lambda pid, number: number in self.workers[pid - FIRST_PID].catches),
            (supervise, "kill_worker", self._kill),
            (supervise, "sweep", self._sweep),
            (forked, "kill_worker", self._kill),
            (forked, "os", SimpleNamespace(kill=self._send)),
            (failures, "from_status", lambda *args, **more: replace(from_status(*args, **more), time_s=self.wall_s)),
            (failures, "unforeseen_end", lambda: replace(unforeseen_end(), time_s=self.wall_s)),
        ):
            monkeypatch.setattr(module, name, new)

    def at(self, when_s, what, *args, **more):
        """``what`` happens then."""
        self._num_planned += 1
        self._due.append((when_s, self._num_planned, lambda: what(*args, **more)))

    def rank(self, rank, when_s, name, *args, **more):
        """A worker does this then, by the name of its method."""
        self.at(when_s, lambda: getattr(self.workers[rank], name)(*args, **more))

    def each(self, when_s, name, *args, **more):
        """All do."""
        for rank in self.spec.ranks:
            self.rank(rank, when_s, name, *args, **more)

    def signal(self, when_s, number):
        """The launcher gets a signal."""
        self.at(when_s, self.interrupts.tell, number)

    def run(self):
        """The result; what else it did can be looked up in this object."""
        streams = SimpleNamespace(for_rank=lambda rank: (0, 1, 2), handed_over=self._note_handed_over)
        try:
            with self.interrupts:
                return supervise.supervise(self.server, self.spec, streams, self.interrupts)
        finally:
            self.release()

    def release(self):
        """Closes what the workers and the server have open. For who does not ``run`` it."""
        for worker in self.workers.values():
            os.close(worker.fd)
        self.server.release()

    def drop(self, when_s):
        """What was to happen then does not."""
        self._due = [due for due in self._due if due[0] != when_s]

    def sent(self, *but):
        """The signals that each worker was sent, without these workers."""
        return {rank: worker.got for rank, worker in self.workers.items() if rank not in but}

    @property
    def wall_s(self):
        return self._began_s + self.now

    @property
    def next_at(self):
        return min(self._due)[0] if self._due else math.inf

    def play_next(self):
        due = min(self._due)
        self._due.remove(due)
        self.now = max(self.now, due[0])
        due[2]()

    def _observe(self, kind, launch):
        self.watcher, self.end = Watcher(self), launch.end
        return self.watcher

    def _sweep(self, sessions, private_dir, *, succeeded=False):
        self.swept.append((set(sessions), private_dir, succeeded))

    def _send(self, pid, number):
        self.workers[pid - FIRST_PID].gets(number)

    def _kill(self, pid):
        with contextlib.suppress(ProcessLookupError):
            self._send(pid, signal.SIGKILL)

    def _note_handed_over(self):
        self.num_handed_over += 1
