"""The agent of a node: starts this machine's workers after each rendezvous, watches them, and
follows what all nodes decide at the end of a round."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from torch.distributed.elastic.rendezvous import RendezvousGracefulExitError

from lockstep._base.errors import LaunchError
from lockstep._base.stopping import say
from lockstep._launch.elastic.connection import Connection
from lockstep._launch.elastic.dynamic_rendezvous import DynamicRendezvous
from lockstep._launch.elastic.heartbeat import Heartbeat
from lockstep._launch.elastic.places import Machine, Start
from lockstep._launch.elastic.round import Report, Round
from lockstep._launch.elastic.signed import ForgedError
from lockstep._launch.elastic.static_rendezvous import StaticRendezvous
from lockstep._launch.elastic.verdict import Verdict, judge, without_store
from lockstep._launch.elastic.waiter import StoppedError
from lockstep._launch.elastic.workers import Workers
from lockstep._launch.local import reserved_port
from lockstep._launch.output import OutputPlan
from lockstep._launch.processes import sweep
from lockstep._launch.server import ForkServer
from lockstep._launch.spec import LaunchSpec, Node
from lockstep._launch.supervise import GRACE_S
from lockstep._world.machine.addresses import interface_with, is_loopback, with_port

_MONITOR_S = 0.1
_LAUNCH = "launch"
"""The entry with the name of the launch, in the run's store."""
_USED = "used"
"""The entry with the number of restarts after failures, in the run's store."""
_FAREWELL_S = GRACE_S + 1.5
"""Seconds that the keeper of the store waits for the others at the end: their workers get GRACE_S
to end, then they report."""


class StoreLostError(LaunchError):
    """The launchers' store does not answer. Further requests to it could hang."""


class NodeAgent:
    """The agent, which starts this machine's workers after each rendezvous, and a new rendezvous
    when a node comes, goes or fails.

    Whether to start again is decided in the same way on all nodes (see ``verdict``). ``spec`` is as
    on one machine: fields that differ between starts are replaced. ``take_server`` returns a fork
    server that is alive.
    """

    def __init__(
        self,
        connection: Connection,
        heartbeat: Heartbeat,
        rendezvous: StaticRendezvous | DynamicRendezvous,
        spec: LaunchSpec,
        take_server: Callable[[], ForkServer],
        plan: OutputPlan,
    ) -> None:
        self.verdict: Verdict | None = None
        """The verdict on the last round; None: it ended successfully, or has not ended."""
        self.is_reporter = True
        """Whether this launcher reports the verdict in full."""
        self._connection = connection
        self._heartbeat = heartbeat
        self._rendezvous = rendezvous
        self._spec = spec
        self._take_server = take_server
        self._plan = plan
        self._round: Round | None = None
        self._workers: Workers | None = None
        self._in_round = ExitStack()
        self._signal = 0
        self.stopped_with: int | None = None
        """The exit status of a run that was asked to stop, and saved itself or could not; None
        after another start."""
        self._is_joining = False  # the workers are being ended because another node joins
        self._there: Collection[int] = ()  # nodes of the last round that were not lost
        self.lost_s = connection.lost_s
        """Seconds of silence after which another node, or the store, counts as lost."""

    def stop(self, number: int) -> None:
        """Ends the workers, and leaves: this launcher got a signal. May be called from any thread;
        a second call kills them.

        Workers that save the run do so first, with the workers of all nodes, and then all nodes
        decide together."""
        if self._workers is None or not self._workers.is_running:
            self._connection.stop.set()
        elif self._signal or not self._is_joining:  # else they are saving the run already
            self._workers.stop(number, at_once=True)
        self._signal = self._signal or number

    @property
    def stopped_by(self) -> signal.Signals | None:
        """The signal that stopped this launcher."""
        return signal.Signals(self._signal) if self._signal else None

    @property
    def was_cut_short(self) -> bool:
        """Whether this launcher stopped waiting for the run to save itself."""
        return self._workers is not None and self._workers.outcome.was_cut_short

    @property
    def is_unsaved(self) -> bool:
        """Whether the run finished, but its end could not be saved."""
        return self._workers is not None and self._workers.outcome.is_unsaved

    @property
    def is_settling(self) -> bool:
        """Whether the workers here have saved the run, and this node waits for the others."""
        settles = self.stopped_with is not None and self.verdict is None
        return settles and self._round is not None and self._store_answers

    @property
    def has_workers(self) -> bool:
        """Whether any of this machine's workers may be running."""
        return self._workers is not None and self._workers.is_running

    def run(self) -> None:
        """Runs until the run is finished on this node, or all nodes have agreed to end it.

        Raises:
            StoppedError: this launcher was stopped.
            StoreLostError: the launchers' store no longer answers.
            LaunchError: nodes did not arrive, or not within the timeout.
        """
        try:
            self._begin()
            while not self._is_over():
                time.sleep(_MONITOR_S)
        except RendezvousGracefulExitError:
            pass  # a spare node: the others have finished the run
        finally:
            if self._workers is not None and self._workers.is_running:
                self._workers.end(at_once=True)
                self._workers.wait()
            self._in_round.close()

    @property
    def _current(self) -> tuple[Round, Workers]:
        assert self._round is not None
        assert self._workers is not None
        return self._round, self._workers

    def _begin(self) -> None:
        """Meets the other nodes, and starts the workers."""
        # First: it ends the heartbeats of the round before, and frees the port, if this node had
        # reserved one.
        self._in_round.close()
        connection = self._connection
        address, keeps_store = connection.endpoint.local_address, connection.server is not None
        place = self._rendezvous.meet(Machine.here(address, self._spec.nproc, keeps_store=keeps_store), self._start)
        self._there = range(place.num_nodes)
        self._round = Round(connection.round_store(place.count), self._heartbeat, place, self._rendezvous.look)
        self._in_round.callback(self._round.close)
        where = with_port(connection.endpoint.store_host, connection.nodes.port)
        node = Node(
            number=place.number,
            num_nodes=place.num_nodes,
            first_rank=place.first_rank,
            world_size=place.world_size,
            master_addr=place.master_addr,
            store=f"tcp://{where}/{quote(f'{connection.prefix}/start-{place.count}')}",
            run_id=connection.nodes.run_id,
            interface="lo" if is_loopback(address) else interface_with(address) or "",
            # A separate key, since it is in the environment of the user's program. The launchers'
            # key cannot be computed from it.
            secret=connection.secret.derived(b"ranks").key.hex(),
        )
        self._introduce(node)
        start_dir = Path(self._spec.private_dir, f"start-{place.count}")
        start_dir.mkdir(mode=0o700)
        spec = dataclasses.replace(
            self._spec,
            name=place.launch,
            private_dir=str(start_dir),
            node=node,
            restart=place.count,
            master_port=place.master_port,
        )
        self.verdict, self.stopped_with, self._is_joining = None, None, False
        self._workers = Workers(spec, self._take_server(), self._plan)

    def _start(self) -> Start:
        """What this node announces if it is the first one."""
        # In the store, since the first node may be new.
        store = self._connection.run_store
        launch, used = store.compare_set(_LAUNCH, "", self._spec.name).decode(), store.add(_USED, 0)
        return Start(launch=launch, used=used, master_port=self._in_round.enter_context(reserved_port()))

    def _introduce(self, node: Node) -> None:
        assert self._round is not None
        if node.number == 0:
            hosts = ", ".join(f"{machine.host} ({machine.ranks})" for machine in self._round.machines)
            plural = "es" if node.world_size > 1 else ""
            say(f"{node.world_size} process{plural} on {node.num_nodes} node{'s' if node.num_nodes > 1 else ''}: {hosts}")

    def _is_over(self) -> bool:
        """Checks the workers and the other nodes, and acts on it. Returns whether the run is
        finished for this node.

        Called several times a second.
        """
        round_, workers = self._current
        is_running = workers.is_running
        if not is_running:
            self.stopped_with = workers.outcome.stopped_with
        if self._signal:
            self._handle_signal(is_running)
        self._check_store()
        if not is_running and not workers.failures and not round_.has_ended and not self._was_stopped:
            round_.done(self.stopped_with)
            if round_.num_done == round_.num_nodes and not round_.has_stopped:
                return True
            # Otherwise a node was lost, or all are done and some because the run was asked to stop:
            # then only the reports show how the round ended, and all nodes judge these.
            if round_.num_done < round_.num_nodes and not round_.silent(self.lost_s):
                return False  # others have not finished
        if is_running:
            if not self._must_end():
                return False
            workers.end()
        # Announced before the wait, which lasts until the workers here have ended: the other nodes
        # end theirs meanwhile.
        is_first = round_.end()
        workers.wait()
        return self._settle(is_first=is_first)

    @property
    def _was_stopped(self) -> bool:
        """Whether the workers were stopped without saving the run."""
        _, workers = self._current
        return workers.is_stopping and workers.outcome.stopped_with is None

    def _handle_signal(self, is_running: bool) -> None:
        """Acts on the signal that this launcher got.

        Raises:
            StoppedError: the workers have exited, and this node leaves.
        """
        _, workers = self._current
        is_stopped = self._connection.stop.is_set()
        if is_running and is_stopped and not workers.is_stopping:
            workers.stop(self._signal, at_once=True)  # it arrived just before they were started
        elif not is_stopped and not workers.is_stopping:
            self._signal = 0  # the run had already ended
        elif not is_running and not workers.failures and (is_stopped or self._was_stopped):
            self._end_round()
            raise StoppedError

    def _must_end(self) -> bool:
        """Whether running workers cannot continue, since another node was lost or has failed."""
        round_, workers = self._current
        if round_.silent(self.lost_s):
            return True
        if self._signal or self._is_joining:
            return False  # they were told to end
        if round_.num_waiting and not round_.has_ended:
            # By SIGTERM, on which workers may save their state. The other nodes notice the new one
            # by themselves.
            self._is_joining = True
            workers.stop(signal.SIGTERM, at_once=True)
            return False
        return round_.has_ended

    def _settle(self, *, is_first: bool) -> bool:
        """Learns how the round ended on all nodes, and does what follows. Returns whether the run
        is finished."""
        round_, workers = self._current
        stopped_with = workers.outcome.stopped_with or 0
        round_.report(
            Report(
                joins=self._is_joining,
                is_first=is_first,
                failures=workers.failures,
                signal=self._signal,
                stopped_with=stopped_with,
            )
        )
        nodes = self._connection.nodes
        reports = round_.reports(self._connection.stop.sleep)
        self._there = reports
        self.verdict = judge(
            reports,
            round_.machines,
            least=nodes.least,
            is_elastic=nodes.is_elastic,
            used=round_.place.used,
            max_restarts=self._spec.max_restarts,
        )
        self.stopped_with = self.verdict.stopped_with
        self.is_reporter = self.verdict.reporter == round_.number
        # Workers that ended successfully may have left processes (`sweep`).
        sweep((), workers.spec.private_dir)
        self._in_round.close()
        if not self.verdict.continues:
            return True
        if self._signal:
            raise StoppedError  # the others continue
        say(self.verdict.text if self.is_reporter else self.verdict.brief)
        # One node adds for all: the number is the run's, in the store.
        if self.is_reporter and self.verdict.counts:
            self._connection.run_store.add(_USED, 1)
        self._begin()
        return False

    def _end_round(self) -> None:
        """Announces to the others that this node leaves, if the store answers."""
        if self._round is None or self._heartbeat.error is not None:
            return
        is_first = self._round.end()
        assert self._workers is not None
        self._round.report(Report(is_first=is_first, failures=self._workers.failures, signal=self._signal))

    @property
    def _store_answers(self) -> bool:
        return self._heartbeat.error is None and self._heartbeat.silence_s() < self.lost_s

    def _check_store(self) -> None:
        if self._store_answers:
            return
        _, workers = self._current
        error, silence_s = self._heartbeat.error, self._heartbeat.silence_s()
        if isinstance(error, ForgedError):
            raise error
        endpoint, host = self._connection.nodes.endpoint, self._connection.nodes.host
        reason = "no longer answers" if error is not None else f"has not answered for {silence_s:.0f} s"
        workers.end()
        workers.wait()
        raise StoreLostError(f"{endpoint} {reason}: {without_store(host)}", code="store-lost")

    def leave(self) -> None:
        """Leaves the store. Its keeper waits until the others have left, who may still need it."""
        if self._round is None:
            return
        place = self._round.place
        store = self._connection.round_store(place.count)
        store.set(f"left/{place.number}", "")
        names, deadline = [f"left/{number}" for number in self._there], time.monotonic() + _FAREWELL_S
        while self._connection.server is not None and not store.check(names) and time.monotonic() < deadline:
            time.sleep(0.02)
