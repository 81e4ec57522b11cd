"""Finding out which processes share a machine, if the launcher has not said so, and which share
devices."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep._world.devices import card_of, uuid_of
from lockstep._world.environment import World
from lockstep._world.machine.identity import shared_by


def this_machine() -> str:
    """An identifier that is equal for two processes if they can reach each other over the loopback
    interface."""
    return f"{socket.gethostname()}/{shared_by('net')}"


def find_machines(world: World, store: Store) -> World:
    """Completes the fields of the world that the launcher did not set. Every rank must call it; it
    blocks until all have, unless nothing is missing."""
    if not world.unsaid:
        return world
    store.set(f"machine/{world.rank}", this_machine())
    machines = store.multi_get([f"machine/{rank}" for rank in range(world.world_size)])
    return placed(world, [machine.decode() for machine in machines])


def placed(world: World, machines: list[str]) -> World:
    """Completes the world from the machine of each rank. Machines are numbered in the order of
    their first ranks."""
    machine = machines[world.rank]
    nodes = list(dict.fromkeys(machines))
    fields: dict[str, Any] = {
        "local_rank": machines[: world.rank].count(machine),
        "local_world_size": machines.count(machine),
        "node_rank": nodes.index(machine),
        "num_nodes": len(nodes),
    }
    return dataclasses.replace(world, **{name: fields[name] for name in world.unsaid}, unsaid=frozenset())


def owns_gpu_exclusively(world: World, devices: Sequence[torch.device], store: Store | None) -> bool:
    """Whether no other process uses this one's devices. With a store every rank must call it, and
    it may block until all have.

    Processes to which a scheduler shows one GPU each (``srun --gpus-per-task=1``) count no more
    than processes that share one: there the ranks compare their GPUs' UUIDs. They also compare
    cards: NCCL refuses two processes on one, which may each have a part (MIG) with its own UUID.

    Args:
        store: where the ranks have met; None: they have not, and processes that might have separate
            devices are taken to.
    """
    if devices[0].type == "cpu":
        return False
    mine = list(map(uuid_of, devices))
    if store is not None:
        # Also on ranks that return before they read the others': another machine may have fewer
        # devices, and its ranks wait for the entries of all.
        cards = [card and f"{this_machine()}/{card}" for card in map(card_of, devices)]
        entries = [f"{uuid}@{card}" for uuid, card in zip(mine, cards, strict=True)]
        store.set(f"devices/{world.rank}", " ".join(entries))
    if world.local_world_size * len(devices) <= torch.accelerator.device_count():
        return True
    if torch.accelerator.device_count() > len(devices) or not all(mine):
        return False
    if store is None:
        return True
    of_ranks = store.multi_get([f"devices/{rank}" for rank in range(world.world_size)])
    pairs = [entry.split("@") for of_rank in of_ranks for entry in of_rank.decode().split()]
    uuids, cards = [uuid for uuid, _ in pairs], [card for _, card in pairs if card]
    return len(set(uuids)) == len(uuids) and len(set(cards)) == len(cards)
