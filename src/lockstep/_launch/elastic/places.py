"""The places of a round's nodes: each announces its machine, and node 0 gives each its
place, all with few requests."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate

from lockstep._launch.elastic.signed import SignedStore

_MACHINES = "machines"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A node that takes part in a round."""

    host: str
    address: str
    num_ranks: int
    first_rank: int = 0
    """The first rank of its processes: known once all machines are."""
    keeps_store: bool = False
    """Whether its launcher keeps the launchers' store."""
    pid: int = 0
    """The process id of its launcher."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    """A unique text for each announcement, since a number may go to another launcher."""

    @staticmethod
    def here(address: str, num_ranks: int, *, keeps_store: bool) -> Machine:
        """This machine, with this process as its launcher."""
        return Machine(
            host=socket.gethostname(),
            address=address,
            num_ranks=num_ranks,
            keeps_store=keeps_store,
            pid=os.getpid(),
        )

    @property
    def ranks(self) -> str:
        """The ranks of its processes, for the user."""
        last = self.first_rank + self.num_ranks - 1
        return f"rank {last}" if self.num_ranks == 1 else f"ranks {self.first_rank} to {last}"


@dataclass(frozen=True, kw_only=True)
class Start:
    """What the first node announces at the beginning of a round."""

    launch: str
    """The name of the launch: that of its first start."""
    used: int
    """Number of restarts after failures so far."""
    master_port: int
    """A free port of its machine."""


@dataclass(frozen=True, kw_only=True)
class Place(Start):
    """What a node learns at the beginning of a round: of the others no more than it needs, since
    they may be thousands."""

    number: int
    """The node's number, from 0."""
    num_nodes: int
    count: int
    """Number of earlier starts of this run: the same on all nodes."""
    master_addr: str
    """The address of the first node."""
    first_rank: int
    """The first rank of the node's processes."""
    world_size: int
    token: str
    """The token of the machine that has this place: another launcher may have taken its number."""


def machine_key(number: int) -> str:
    """Where a node announces its machine, under the names of a round."""
    return f"machine/{number}"


def answer_key(number: int) -> str:
    """Where a node reads its place."""
    return f"answer/{number}"


def read_machine(text: bytes) -> Machine:
    """A machine that was announced."""
    return Machine(**json.loads(text))


def place_all(store: SignedStore, num_nodes: int, count: int, start: Start) -> None:
    """Gives every node its place. (If each looked at all the others, a thousand nodes would ask a
    million times.)

    Waits for their machines as long as the store does for any name.
    """
    nodes = range(num_nodes)
    machines = [read_machine(text) for text in store.multi_get([machine_key(node) for node in nodes])]
    # Nodes with 2, 2 and 1 ranks begin at ranks 0, 2 and 4, and the last sum, 5, is the world size.
    *firsts, world_size = accumulate((each.num_ranks for each in machines), initial=0)
    placed = [replace(each, first_rank=first) for each, first in zip(machines, firsts, strict=True)]
    # Created empty: nodes read all of them in one request, which waits for a name that does not
    # exist.
    values = {f"{name}/{node}": "" for name in ("beat", "done") for node in nodes}
    values[_MACHINES] = json.dumps([asdict(each) for each in placed])
    for node, each in enumerate(placed):
        place = Place(
            **asdict(start),
            number=node,
            num_nodes=num_nodes,
            count=count,
            master_addr=machines[0].address,
            first_rank=each.first_rank,
            world_size=world_size,
            token=each.token,
        )
        values[answer_key(node)] = json.dumps(asdict(place))  # last: now it may begin
    store.multi_set(list(values), list(values.values()))


def read_machines(store: SignedStore) -> Sequence[Machine]:
    """All nodes of a round that has begun, by number."""
    return tuple(Machine(**fields) for fields in json.loads(store.get(_MACHINES)))
