"""The soak of checkpoints on two hosts: a run loses nothing, whatever happens to its hosts.

    make soak-cluster N=1 SOAK_ARGS="--seed 17"

Every round is a run of ``recovery/victim.py`` that ``lockstep run`` starts on two hosts, with
numbers or as hosts that come and go, once to three times. Each time something is done to it at a
random moment (see ``BLOWS``); then it goes on by itself, or the same command is given again, with
other numbers of processes. The end is as ``soaking`` says, and besides: every launcher ends, with a
status that means something, and leaves no process on any host.
"""

import contextlib
import functools
import itertools
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import soaking
from cluster import Cluster
from cluster.host import kill
from cluster_fixtures import wait_until_empty
from host_nurseries import HostNurseries, LaunchedOnHost
from soaking import STEPS

PORT = "29500"
WAIT_S = 15.0  # --timeout
END_S = 150.0  # for a launch, on a machine that does much else
BLOWS = (
    "a process is killed",
    "a launcher is killed",
    "the power of a host is lost",
    "a link is cut for a moment",
    "a link is cut until noticed",
    "SIGTERM to a launcher",
    "SIGUSR1 to a launcher",
)
# It ended well; failed; was asked to stop, and is saved; was killed, or asked to stop before there
# was anything to save.
STATUSES = {0, 1, 75, *(128 + number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1))}
# Of a launcher that is killed, or gets a signal before it handles that.
DEATHS = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGUSR1}


@dataclass(frozen=True, kw_only=True)
class Blow:
    """What is done to a launch, and when."""

    what: str
    host: int
    victim: float
    """Of a process: which, from 0 to 1."""
    batches: int | None
    """That rank 0 has used by then; None: while the launch is still on its way to that."""
    delay_s: float
    """And then."""
    lasts_s: float
    """How long a link is cut, or a host without power."""
    returns: bool
    """Whether the host takes part again, if the launch still goes on without it."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One command, on both hosts or on one."""

    form: str
    """``numbered``, ``elastic`` or, on one host, ``alone``."""
    nprocs: tuple[int, ...]
    order: tuple[int, ...]
    """Hosts, the first to be started first."""
    workers: int
    restarts: int
    step_s: float
    blow: Blow | None

    def __str__(self) -> str:
        hosts = " and ".join(f"host{number} with {self.nprocs[number]} processes" for number in self.order)
        blow = f"; {self.blow.what}, host{self.blow.host}" if self.blow else ""
        return f"{self.form} on {hosts}, {self.workers} workers, {self.restarts} restarts{blow}"


def plan(random: Random, most: int) -> list[Launch]:
    """What happens in a round, with ``most`` blows at most. Nothing is done to the last: the run
    comes to its end in it."""
    launches = [
        _plan_launch(random, random.choice(["numbered", "elastic", "elastic"])) for _ in range(random.randint(1, most))
    ]
    return [*launches, _plan_launch(random, random.choice(["numbered", "elastic", "alone"]), calm=True)]


def _plan_launch(random: Random, form: str, *, calm: bool = False) -> Launch:
    order = random.sample([0, 1], 1 if form == "alone" else 2)
    is_early = random.random() < 0.2
    blow = Blow(
        what=random.choice(BLOWS),
        host=random.choice(order),
        victim=random.random(),
        batches=None if is_early else random.randint(0, STEPS // 2),
        delay_s=random.random() * (8.0 if is_early else 0.1),
        lasts_s=random.uniform(0.5, 4.0),
        returns=random.random() < 0.7,
    )
    return Launch(
        form=form,
        nprocs=(random.randint(1, 2), random.randint(1, 2)),
        order=tuple(order),
        workers=random.choice([0, 0, 1]),
        restarts=random.choice([0, 1]),
        step_s=0.0 if calm else random.choice([0.05, 0.2]),
        blow=None if calm else blow,
    )


class Round(soaking.Round):
    """One run on two hosts of a cluster, and what becomes of it when ``most`` blows at most are
    dealt to it."""

    def __init__(
        self,
        seed: int,
        directory: Path,
        *,
        cluster: Cluster,
        nurseries: HostNurseries,
        kinds: tuple[str, ...] = soaking.KINDS,
        most: int = 3,
    ) -> None:
        super().__init__(seed, directory, kinds)
        self._cluster = cluster
        self._nurseries = nurseries
        self._launches = plan(self.random, most)
        self.numbers = itertools.count()
        """For launches: notes of a later one have a larger number."""

    def run(self) -> dict | None:
        """To its end; returns the last words."""
        for launch in self._launches:
            self.story.append(str(launch))
            said = Launched(self, self._cluster, self._nurseries, launch).run()
            if said is not None:
                return said
        self.wrong.append("it did not come to its end, although nothing was done to the last launch")
        return None


class Launched:
    """One launch: its launchers, and what is done to them."""

    def __init__(self, of: Round, cluster: Cluster, nurseries: HostNurseries, launch: Launch) -> None:
        self._round = of
        self._cluster = cluster
        self._nurseries = nurseries
        self._number = next(of.numbers)
        self._launch = launch
        # that of each host; the newest, where there was more than one
        self._launchers: dict[int, LaunchedOnHost] = {}
        self._outputs: list[Path] = []
        self._deadline = time.monotonic() + END_S

    def run(self) -> dict | None:
        """To its end; returns the last words if that is the end of the run."""
        try:
            for host in self._launch.order:
                self._start(host)
            if self._launch.blow is not None and self._wait_for(self._launch.blow):
                self._deal(self._launch.blow)
            self._end()
        finally:
            self._clear()
        texts = [path.read_text() for path in self._outputs]
        said = next(filter(None, map(soaking.words, texts)), None)
        if said is None and self._launch.blow is None:
            self._round.story += texts
        starts = self._round.notes.starts(self._number)
        self._round.seen["starts within a launch"] += max(0, starts - 1)
        self._round.story.append(f"  {starts} starts{', at its end' if said else ''}")
        return said

    def _start(self, number: int) -> None:
        where = ["--nnodes", "2", "--node-rank", str(number), "--master-addr", "host0", "--master-port", PORT]
        if self._launch.form == "elastic":
            where = ["--nnodes", "1:2", "--rdzv-endpoint", f"host0:{PORT}"]
        if self._launch.form == "alone":
            where = []
        one, launch = self._round, self._launch
        settings = soaking.options(one.directory, WAIT_S) | {"max_restarts": launch.restarts}
        words = [*soaking.run_options(launch.nprocs[number], settings, *where), *soaking.script(one.kind, launch.step_s)]
        path = one.directory / f"output-{self._number}-{len(self._outputs)}-host{number}"
        with path.open("w") as out:
            self._launchers[number] = self._nurseries.start(
                self._cluster.hosts[number],
                words,
                env=one.notes.environment(self._number, launch.workers),
                cwd=one.directory,
                stdout=out,
                stderr=out,
            )
        self._outputs.append(path)

    def _wait_for(self, blow: Blow) -> bool:
        """Whether its moment has come before the launch ended."""
        processes = sum(self._launch.nprocs)
        notes = self._round.notes
        while blow.batches is not None and (
            len(notes.processes(self._number)) < processes or notes.batches(self._number) < blow.batches
        ):
            if not self._are_running() or time.monotonic() > self._deadline:
                return False
            time.sleep(0.01)
        time.sleep(blow.delay_s)
        return self._launchers[blow.host].poll() is None

    def _deal(self, blow: Blow) -> None:
        host, launcher = self._cluster.hosts[blow.host], self._launchers[blow.host]
        early = " of a launch on its way" if blow.batches is None else ""
        self._round.story.append(f"  dealt after {self._round.notes.batches(self._number)} batches{early}")
        self._round.seen["blows to launches on their way"] += blow.batches is None
        self._round.seen[blow.what] += 1
        if blow.what == "a process is killed":
            processes = list(self._round.notes.processes(self._number).values())
            # there may be none yet
            for pid, name in processes[int(blow.victim * len(processes)) :][:1]:
                self._cluster.hosts[int(name.removeprefix("host"))].run(["kill", "-KILL", str(pid)], check=False)
        elif blow.what == "a launcher is killed":
            launcher.kill()
            self._come_back(blow)
        elif blow.what == "the power of a host is lost":
            host.kill()
            time.sleep(blow.lasts_s)
            host.revive()
            self._come_back(blow)
        elif blow.what == "a link is cut for a moment":
            host.cut()
            time.sleep(blow.lasts_s)
            host.restore()
        elif blow.what == "a link is cut until noticed":
            host.cut()
            self._wait_for_end(blow.host)
            host.restore()
            self._come_back(blow)
        else:
            launcher.send_signal(signal.Signals[blow.what.split()[0]])
            self._come_back(blow)

    def _come_back(self, blow: Blow) -> None:
        """Give the command again on a host, if the others go on without it."""
        if self._launch.form != "elastic" or not blow.returns:
            return
        self._wait_for_end(blow.host)
        time.sleep(blow.lasts_s)
        if self._are_running():
            # it kept the store: the other ends as soon as it notices, and counts no start of this
            # one
            if blow.host == 0:
                self._number = next(self._round.numbers)
            self._start(blow.host)
            self._round.seen["hosts that came back"] += 1

    def _are_running(self) -> bool:
        """Whether all launchers are that have not been ended from outside."""
        return any(launcher.poll() is None for launcher in self._launchers.values())

    def _wait_for_end(self, number: int) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._launchers[number].wait(max(0.0, self._deadline - time.monotonic()))
        return None

    def _end(self) -> None:
        """Wait for the end of all, and look what it is."""
        statuses = {f"host{number}": self._wait_for_end(number) for number in sorted(self._launchers)}
        self._round.story.append(f"  ended with {statuses}")
        blow = self._launch.blow
        for name, status in statuses.items():
            struck = blow is not None and blow.what in (*BLOWS[1:3], *BLOWS[5:]) and name == f"host{blow.host}"
            if status is None:
                self._round.seen["launches that hung"] += 1
                self._round.wrong.append(f"launch {self._number}: the launcher of {name} has not ended in {END_S:g} s")
            elif status not in STATUSES and not (struck and status in DEATHS):
                self._round.wrong.append(f"launch {self._number}: the launcher of {name} ended with {status}")
        if None not in statuses.values():
            left = wait_until_empty(self._cluster)
            self._round.wrong += [f"launch {self._number} has left {process}" for process in left]

    def _clear(self) -> None:
        for process in self._cluster.processes():
            kill(process)
        for launcher in self._launchers.values():
            launcher.wait(10)
        self._cluster.mend()


def main() -> int:
    asked = soaking.read_arguments(__doc__, rounds=50, every=1)
    with Cluster(hosts=2) as cluster, contextlib.closing(HostNurseries()) as nurseries:
        return soaking.soak(asked, functools.partial(Round, cluster=cluster, nurseries=nurseries))


if __name__ == "__main__":
    sys.exit(main())
