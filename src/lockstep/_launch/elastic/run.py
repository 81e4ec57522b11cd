"""This machine's part of a launch on several."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time

from torch.distributed import DistError

from lockstep._base.errors import LaunchError
from lockstep._launch.elastic.agent import NodeAgent, StoreLostError
from lockstep._launch.elastic.connection import open_connection
from lockstep._launch.elastic.dynamic_rendezvous import DynamicRendezvous
from lockstep._launch.elastic.heartbeat import Heartbeat
from lockstep._launch.elastic.static_rendezvous import StaticRendezvous
from lockstep._launch.elastic.verdict import without_store
from lockstep._launch.elastic.waiter import Stop
from lockstep._launch.endpoint import Endpoint
from lockstep._launch.output import OutputPlan
from lockstep._launch.server import ForkServer
from lockstep._launch.signals import Interrupts
from lockstep._launch.spec import LaunchSpec
from lockstep._launch.supervise import LaunchResult

_LOOK_S = 0.1
_LEAVE_S = 5.0
"""Seconds that the agent may take to leave after it was stopped and its workers have exited."""


def run_on_nodes(
    endpoint: Endpoint, spec: LaunchSpec, server: ForkServer, plan: OutputPlan, interrupts: Interrupts
) -> LaunchResult:
    """Runs a script on this machine and others to its end, or until it is stopped.

    Afterwards all processes of this machine have exited. Ports and ranks in ``spec`` are set after
    each rendezvous.

    Raises:
        ConfigError: the nodes differ in their secret, or two have the same number; or the file of
            the secret cannot be written.
        LaunchError: a worker failed or a node was lost, and no restart was left; or nodes did not
            arrive within the timeout.
    """
    launch = _Launch(endpoint, server)
    with endpoint.secret.kept() if endpoint.listener is not None else contextlib.nullcontext():
        # In a thread: while the main thread waits for an answer over the network, it handles no
        # signals.
        thread = threading.Thread(target=launch.run, args=(spec, plan), name="lockstep-agent", daemon=True)
        thread.start()
        launch.wait(thread, interrupts)
    agent, error, nodes = launch.agent, launch.error, endpoint.nodes
    stopped_by = launch.stopped_by(interrupts)
    stopped_with, verdict, was_cut_short = None, None, False
    if agent is not None:
        stopped_with, verdict, was_cut_short = agent.stopped_with, agent.verdict, agent.was_cut_short
    # The workers here have saved the run. That its store is lost afterwards changes nothing: the
    # node that kept it may have left first.
    if stopped_with is not None and (stopped_by or error is None or isinstance(error, (StoreLostError, DistError))):
        return LaunchResult(failures=(), stopped_by=stopped_by, stopped_with=stopped_with, spec=spec)
    if stopped_by is not None and (
        verdict is None or verdict.continues
    ):  # else the nodes have agreed that the run has failed
        return LaunchResult(failures=(), stopped_by=stopped_by, was_cut_short=was_cut_short, spec=spec)
    if isinstance(error, DistError):
        raise LaunchError(f"{nodes.endpoint} no longer answers: {without_store(nodes.host)}", code="store-lost") from error
    if error is not None:
        raise error
    return LaunchResult(failures=(), stopped_by=None, is_unsaved=agent is not None and agent.is_unsaved, spec=spec)


class _Launch:
    """State shared by the agent's thread and the main thread, which handles signals."""

    def __init__(self, endpoint: Endpoint, server: ForkServer) -> None:
        self.agent: NodeAgent | None = None
        """The agent of this node; None: this launcher is not connected to the other nodes yet."""
        self.error: BaseException | None = None
        """The error with which the launch ended."""
        self._endpoint = endpoint
        self._nodes = endpoint.nodes
        self._server = server
        self._stop = Stop()
        self._heartbeat: Heartbeat | None = None

    def stopped_by(self, interrupts: Interrupts) -> signal.Signals | None:
        """The signal that stopped this launcher, unless it was for the script alone."""
        if self.agent is not None:
            return self.agent.stopped_by
        return signal.Signals(interrupts.received[0]) if interrupts.received else None

    def run(self, spec: LaunchSpec, plan: OutputPlan) -> None:
        """Runs the agent, in its own thread."""
        try:
            self._run(spec, plan)
        except BaseException as error:
            self.error = self.error or error

    def wait(self, thread: threading.Thread, interrupts: Interrupts) -> None:
        """Waits until the agent has exited; once it was stopped and its workers have exited, only
        briefly."""
        num_heard, give_up_at = 0, math.inf
        while thread.is_alive():
            thread.join(_LOOK_S)
            for number in interrupts.received[num_heard:]:
                num_heard += 1
                if self.agent is None:
                    self._stop.set()
                else:
                    self.agent.stop(number)
            is_busy = self.agent is not None and (self.agent.has_workers or self.agent.is_settling)
            leaves = self.stopped_by(interrupts) is not None and not is_busy
            give_up_at = min(give_up_at, time.monotonic() + _LEAVE_S) if leaves else math.inf
            if self._rendezvous_hangs():
                self.error = StoreLostError(
                    f"{self._nodes.endpoint} has not answered: {without_store(self._nodes.host)}", code="store-lost"
                )
                break
            if time.monotonic() > give_up_at:
                break
        if self._heartbeat is not None:
            self._heartbeat.close()
        self._server.close()

    def _rendezvous_hangs(self) -> bool:
        """Whether the agent is at a rendezvous, where it waits for the store indefinitely, and the
        store does not answer."""
        if self._heartbeat is None or self.agent is None or self.agent.has_workers:
            return False
        return self._heartbeat.silence_s() > self.agent.lost_s + _LEAVE_S

    def _run(self, spec: LaunchSpec, plan: OutputPlan) -> None:
        # Its warnings are replaced by messages for users.
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        connection = open_connection(self._endpoint, spec.config.timeout_s, self._stop)
        heartbeat = self._heartbeat = Heartbeat(connection)
        rendezvous = (DynamicRendezvous if self._nodes.node_rank is None else StaticRendezvous)(connection)
        agent = self.agent = NodeAgent(connection, heartbeat, rendezvous, spec, self._take_server, plan)
        try:
            agent.run()
        except StoreLostError:
            raise  # further requests to it could hang
        except BaseException:
            with contextlib.suppress(Exception):
                # An elastic run continues without this node.
                if not self._nodes.is_elastic:
                    rendezvous.shutdown()
                agent.leave()
            raise
        rendezvous.shutdown()
        with contextlib.suppress(DistError):  # its keeper has left already: all is done
            agent.leave()
        if agent.verdict is not None and not agent.verdict.continues and agent.stopped_with is None:
            verdict = agent.verdict
            raise LaunchError(verdict.text if agent.is_reporter else verdict.brief, verdict.status, code=verdict.code)

    def _take_server(self) -> ForkServer:
        """The warm server, or a new one if that was ended with its workers."""
        if not self._server.is_alive():
            self._server.close()
            self._server = ForkServer.start()
        return self._server
