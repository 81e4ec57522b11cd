"""Finding out which processes share a machine, if the launcher has not said so."""

from __future__ import annotations

import dataclasses
import socket
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep.world.environment import World
from lockstep.world.machine.identity import shared_by


def this_machine() -> str:
    """An identifier that is equal for two processes if they can reach each other over the loopback interface."""
    return f"{socket.gethostname()}/{shared_by('net')}"


def find_machines(world: World, store: Store) -> World:
    """Complete the fields of the world that the launcher did not set. Every rank must call it; it blocks until all have,
    unless nothing is missing."""
    if not world.unsaid:
        return world
    store.set(f"machine/{world.rank}", this_machine())
    machines = store.multi_get([f"machine/{rank}" for rank in range(world.world_size)])
    return placed(world, [machine.decode() for machine in machines])


def placed(world: World, machines: list[str]) -> World:
    """Complete the world from the machine of each rank. Machines are numbered in the order of their first ranks."""
    machine = machines[world.rank]
    nodes = list(dict.fromkeys(machines))
    fields: dict[str, Any] = {
        "local_rank": machines[: world.rank].count(machine),
        "local_world_size": machines.count(machine),
        "node_rank": nodes.index(machine),
        "num_nodes": len(nodes),
    }
    return dataclasses.replace(world, **{name: fields[name] for name in world.unsaid}, unsaid=frozenset())
