"""Which processes share a machine, where no launcher has said it."""

from __future__ import annotations

import dataclasses
import socket
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep.machine.identity import shared_by
from lockstep.world import World


def this_machine() -> str:
    """The same text for two processes if one can reach the other over the loopback interface."""
    return f"{socket.gethostname()}/{shared_by('net')}"


def find_machines(world: World, store: Store) -> World:
    """The world with what nobody has said. Every rank must call it, if any world lacks something; it blocks until all have."""
    if not world.unsaid:
        return world
    store.set(f"machine/{world.rank}", this_machine())
    machines = [store.get(f"machine/{rank}").decode() for rank in range(world.world_size)]
    return placed(world, machines)


def placed(world: World, machines: list[str]) -> World:
    """The world with what nobody has said, from the machine of each rank. Machines are numbered by their first ranks."""
    own = machines[world.rank]
    nodes = list(dict.fromkeys(machines))
    found: dict[str, Any] = {
        "local_rank": machines[: world.rank].count(own),
        "local_world_size": machines.count(own),
        "node_rank": nodes.index(own),
        "num_nodes": len(nodes),
    }
    return dataclasses.replace(world, **{name: found[name] for name in world.unsaid}, unsaid=frozenset())
