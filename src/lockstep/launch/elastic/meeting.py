"""Where the nodes meet: the launchers' store, and torchelastic's rendezvous over it.

A launcher of node ranks uses torchelastic's static rendezvous, one without them its dynamic one. What is added: whoever waits
says for whom; the store listens on one address; and the first meeting of nodes that may come and go waits for the most that
there can be, later ones do not.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token, create_handler
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from lockstep.errors import ConfigError, LaunchError
from lockstep.launch.elastic.claim import Claim
from lockstep.launch.elastic.clock import Clock, SameClock, seconds_ahead
from lockstep.launch.elastic.patience import Patience, Stop, StoppedError
from lockstep.launch.elastic.terms import refused
from lockstep.launch.nodes import GATHER_S, LOST_S, Nodes, Place
from lockstep.tcp_store import connect, serve

_OTHERS_S = 5.0
"""How long a meeting may take without a word, once there are enough."""
_ALL_RUNS = "lockstep"
"""Prefix of what launchers write into the store."""
_STORE_S = 60.0
"""How long an answer of the store may take, for what somebody is known to be about to write, if no run can go on without."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """This launcher's end of where the nodes meet."""

    nodes: Nodes
    place: Place
    timeout_s: float
    stop: Stop
    store: TCPStore
    server: TCPStore | None
    """Keeps the store, where that is here."""

    @property
    def prefix(self) -> str:
        """Of all that this run writes into the store."""
        return f"{_ALL_RUNS}/{self.nodes.run_id}"

    @property
    def own_store(self) -> Store:
        """For what the launchers of this run tell each other."""
        return PrefixStore(self.prefix, self.store)

    @property
    def lost_s(self) -> float:
        """After how many seconds of silence another node, or the store, is taken for lost."""
        return min(LOST_S, self.timeout_s) if self.nodes.is_elastic else self.timeout_s

    @property
    def answer_s(self) -> float:
        """How many seconds an answer of the store may take, for what another node is about to write. (torchelastic looks once
        a second whether all have come: nodes come from a meeting a moment after each other.)"""
        return max(_OTHERS_S, min(_STORE_S, self.lost_s))

    def patience(self, remedy: str, timeout_s: float | None = None) -> Patience:
        """A wait for other nodes, from now."""
        return Patience(self.nodes.place, self.timeout_s if timeout_s is None else timeout_s, self.stop, remedy)

    def another_client(self) -> TCPStore:
        """For another thread: a client that waits for an answer lets nobody else ask."""
        patience = self.patience("Has the machine that keeps the store been lost?")
        return _connect(self.nodes, patience)


def open_meeting(nodes: Nodes, place: Place, timeout_s: float, stop: Stop) -> Meeting:
    """Open the launchers' store, or come to it.

    Raises:
        LaunchError: nobody keeps it, until the timeout.
        StoppedError: somebody has stopped this launcher.
    """
    server = serve(place.listener, place.listens_at, _STORE_S) if place.listener else None
    who = "node 0" if nodes.node_rank is not None else "its machine"
    patience = Patience(
        nodes.place, timeout_s, stop, f"Was {who} started, with this address and port? (A longer time to wait: --timeout.)"
    )
    store = _connect(nodes, patience)
    meeting = Meeting(nodes=nodes, place=place, timeout_s=timeout_s, stop=stop, store=store, server=server)
    store.set_timeout(datetime.timedelta(seconds=meeting.answer_s))
    return meeting


def _connect(nodes: Nodes, patience: Patience) -> TCPStore:
    who = "node 0, which keeps the store" if nodes.node_rank is not None else "the machine that keeps the store"
    store = connect(nodes.host, nodes.port, lambda: patience.remaining_s, lambda why: patience.pause(f"{who} ({why})"))
    store.set_timeout(datetime.timedelta(seconds=_STORE_S))
    return store


def make_rendezvous(meeting: Meeting) -> NodeRendezvous:
    """torchelastic's rendezvous for these nodes."""
    nodes = meeting.nodes
    if nodes.node_rank is not None:
        return StaticMeetings(meeting)
    return DynamicMeetings(meeting)


class NodeRendezvous(RendezvousHandler):
    """One of torchelastic's rendezvous handlers, in words for the user."""

    _inner: RendezvousHandler

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def look(self) -> int:
        """How many nodes wait to take part: asks the store, which ``num_nodes_waiting`` does not."""
        return self._inner.num_nodes_waiting()

    def is_over(self) -> None:
        """What has followed from the last meeting is at its end: whoever comes from now on comes to the next."""

    def close(self) -> None:
        """This launcher ends."""

    def get_backend(self) -> str:
        """torchelastic's name for it."""
        return self._inner.get_backend()

    def is_closed(self) -> bool:
        """Whether the run has ended."""
        return self._inner.is_closed()

    def set_closed(self) -> None:
        """Have no node come any more."""
        self._inner.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        """For torchelastic's agent, which would ask the store in the thread that must not wait: see ``Round``."""
        return 0

    def get_run_id(self) -> str:
        """As the user calls it."""
        return self._meeting.nodes.run_id

    def shutdown(self) -> bool:
        """The run has ended."""
        return self._inner.shutdown()


class StaticMeetings(NodeRendezvous):
    """Nodes with numbers: all of them, every time."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(meeting)
        nodes = meeting.nodes
        assert nodes.node_rank is not None
        self._rank = nodes.node_rank
        self._number = -1
        parameters = RendezvousParameters(
            "static",
            f"{nodes.host}:{nodes.port}",
            nodes.run_id,
            nodes.least,
            nodes.most,
            rank=self._rank,
            timeout=int(meeting.timeout_s) or 1,
        )
        self._inner = get_rendezvous_handler(parameters)

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet, for the first time or again. Every node must come; it waits for them, and says so.

        Raises:
            ConfigError: another launcher has this node's number.
            LaunchError: a node has not come in time.
            StoppedError: somebody has stopped this launcher.
        """
        store = self._meeting.own_store
        self._number += 1
        self._arrive(store)
        try:
            self._gather(store)
        except (StoppedError, LaunchError):
            with contextlib.suppress(DistError):
                store.delete_key(self._key(self._rank))  # so that it may come again
            raise
        store.set(f"off/{self._number}/{self._rank}", "")
        info = self._inner.next_rendezvous()
        own = PrefixStore(f"{self._meeting.prefix}/meeting-{self._number}", self._meeting.store)
        assert info.bootstrap_store_info is not None
        return RendezvousInfo(own, info.rank, info.world_size, info.bootstrap_store_info)

    def is_over(self) -> None:
        """Have launchers that are started from now on come to the next meeting."""
        store = self._meeting.own_store
        if store.add("meeting", 0) <= self._number and store.add(f"over/{self._number}", 1) == 1:
            store.add("meeting", 1)

    def _arrive(self, store: Store) -> None:
        me = Claim.own()
        expected, mine = "", me.to_json()
        patience = self._meeting.patience("End the launchers of the other nodes, and start all again.")
        while True:
            # A launcher that was started again comes to the meeting that the others have come to by now.
            self._number = max(self._number, int(store.add("meeting", 0)))
            found = store.compare_set(self._key(self._rank), expected, mine).decode()
            if found == mine:
                return
            first = Claim.from_json(found)
            if not first.has_ended(me):
                raise ConfigError(
                    f"--node-rank {self._rank} is taken, by {first}: give every node a number of its own, from 0 "
                    f"to {self._meeting.nodes.most - 1}. (If that one is of another run, give each run a port of its own. If "
                    "it was this node, and was lost, the others have not noticed yet: they take "
                    f"{self._meeting.timeout_s:g} s for that, see --timeout.)"
                )
            if store.check([f"off/{self._number}/{self._rank}"]):  # the others may have begun with it
                expected = ""
                patience.pause(f"the others to notice that {first}, which was this node, has ended")
            else:  # it waited like the others: take its place, unless it has given that up
                expected = "" if expected == found else found

    def _gather(self, store: Store) -> None:
        patience = self._meeting.patience(
            "Was every node started, with the same --master-addr and --master-port? Look for one that has failed. (A longer "
            "time to wait: --timeout.)"
        )
        nodes = range(self._meeting.nodes.most)
        while not store.check([self._key(node) for node in nodes]):
            missing = [str(node) for node in nodes if not store.check([self._key(node)])]
            if missing:
                why, plural = refused(store), "s" if len(missing) > 1 else ""
                patience.pause(f"node{plural} {', '.join(missing)} of {len(nodes)}{why and f' ({why})'}")

    def _key(self, node: int) -> str:
        return f"here/{self._number}/{node}"


class DynamicMeetings(NodeRendezvous):
    """Nodes that come, and perhaps go: between the least and the most of them."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(meeting)
        nodes = meeting.nodes
        self._is_first = True
        self._patience: Patience | None = None
        self._is_spare = False  # all places were taken, when the state was read last
        self._join_s = nodes.conf.get("join_timeout", max(1, int(meeting.timeout_s)))
        parameters = RendezvousParameters(
            "c10d",
            f"{nodes.host}:{nodes.port}",
            nodes.run_id,
            nodes.least,
            nodes.most,
            meeting.place.own_address,
            **{**nodes.conf, "join_timeout": self._join_s},
        )
        # Under no run's own name: another run may meet at the same store, and finds its clock here, too.
        self._clock = Clock(PrefixStore(_ALL_RUNS, meeting.another_client())) if meeting.server is not None else None
        ahead_s = 0.0 if meeting.server is not None else seconds_ahead(PrefixStore(_ALL_RUNS, meeting.store))
        backend = SameClock(C10dRendezvousBackend(meeting.store, nodes.run_id), ahead_s)
        # torchelastic would have the first node open a store on all interfaces, and tell of it only once: a node that
        # outlives the first would look for it in vain.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self._inner = create_handler(meeting.store, _Told(backend, self._tell), parameters)

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet, for the first time or again: whoever is there, if they are enough. It waits for them, and says so.

        Raises:
            LaunchError: too few have come in time, or the run has ended.
            StoppedError: somebody has stopped this launcher.
        """
        nodes = self._meeting.nodes
        remedy = (
            f"Were at least {nodes.least} nodes started, with the same --rdzv-endpoint and --rdzv-id? (A longer time to wait: "
            "--timeout.)"
        )
        try:
            if self._is_first:
                self._gather(self._meeting.patience(remedy))
            self._is_first = False
            self._begin_turn()  # however long it has waited for the most: now enough are here
            return self._inner.next_rendezvous()
        except RendezvousClosedError as error:
            raise LaunchError(
                f"the run {nodes.run_id!r} at {nodes.place} has ended, and takes no node any more: wait until its launchers "
                "are gone, or give another --rdzv-id"
            ) from error
        except RendezvousTimeoutError as error:
            assert self._patience is not None
            raise self._patience.in_vain() from error
        except RendezvousConnectionError as error:
            raise DistError(str(error.__cause__ or error)) from error
        finally:
            self._patience = None

    def close(self) -> None:
        """This launcher ends."""
        if self._clock is not None:
            self._clock.close()

    def _begin_turn(self) -> None:
        """From now on torchelastic lets this node wait for its ``join_timeout``."""
        nodes = self._meeting.nodes
        remedy = (
            f"At least {nodes.least} nodes have to come, with the same --rdzv-endpoint and --rdzv-id; and those that are there "
            "have to end their processes before they meet again. (A longer time to wait: --timeout.)"
        )
        self._patience = self._meeting.patience(remedy, self._join_s)

    def _gather(self, patience: Patience) -> None:
        """Before the first meeting: wait a while for the most, and then for the least."""
        store = self._meeting.own_store
        num_here = store.add("arrived", 1)
        try:
            self._await_enough(store, num_here, patience)
        except (StoppedError, LaunchError):
            with contextlib.suppress(DistError):
                store.add("arrived", -1)
            raise

    def _await_enough(self, store: Store, num_here: int, patience: Patience) -> None:
        nodes = self._meeting.nodes
        while not store.check(["begun"]):
            if num_here >= nodes.most or (
                num_here >= nodes.least and patience.waited_s > min(GATHER_S, self._meeting.timeout_s)
            ):
                store.set("begun", "1")
                break
            why = refused(store)
            patience.pause(f"more nodes: {num_here} of {nodes.count} {_are(num_here)} here{why and f' ({why})'}")
            num_here = store.add("arrived", 0)

    def _tell(self, state: bytes | None) -> None:
        """Called with whatever torchelastic finds in the store while it meets."""
        if self._patience is None:
            return
        here = _participants(state)
        names = f" ({', '.join(here)})" if here else ""
        nodes = self._meeting.nodes
        told = f"{len(here)} of {nodes.count} {_are(len(here))} here{names}"
        if self._is_spare and len(here) < nodes.most:
            self._begin_turn()
        self._is_spare = len(here) >= nodes.most
        if len(here) < nodes.least:
            self._patience.tell(f"more nodes: {told}")
        elif self._patience.waited_s < _OTHERS_S:  # torchelastic's last call
            self._meeting.stop.wait(0)
        else:  # all places are taken, until a node is lost; or the others may have to end their processes
            self._patience.tell(f"its turn: {told}", ends=not self._is_spare)


class _Told(RendezvousBackend):
    """Where torchelastic keeps the state of a rendezvous; tells of it whenever it is read."""

    def __init__(self, inner: RendezvousBackend, tell: Callable[[bytes | None], None]) -> None:
        self._inner = inner
        self._tell = tell

    @property
    def name(self) -> str:
        """torchelastic's name for it."""
        return self._inner.name

    def get_state(self) -> tuple[bytes, Token] | None:
        """See torchelastic."""
        found = self._inner.get_state()
        self._tell(found[0] if found else None)
        return found

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """See torchelastic."""
        return self._inner.set_state(state, token)


def _participants(state: bytes | None) -> list[str]:
    """The addresses of the nodes that have come. The class of the state is PyTorch's own business: it is only for words."""
    try:
        return sorted(node.addr for node in pickle.loads(state).participants) if state else []
    except Exception:
        return []


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
