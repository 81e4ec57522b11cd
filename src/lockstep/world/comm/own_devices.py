"""Finding out whether each process has devices of its own, which a backend such as NCCL needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep.world.devices import uuid_of
from lockstep.world.environment import World


def has_own_devices(world: World, devices: Sequence[torch.device], store: Store | None) -> bool:
    """Whether no other process uses this one's devices. With a store every rank must call it, and it may block until all have.

    Processes to which a scheduler shows one GPU each (``srun --gpus-per-task=1``) count no more than processes that share one:
    there the ranks compare their GPUs' UUIDs.

    Args:
        store: where the ranks have met; None: they have not, and processes that might have devices of their own are taken to.
    """
    if devices[0].type == "cpu":
        return False
    mine = list(map(uuid_of, devices))
    if store is not None:
        store.set(f"devices/{world.rank}", " ".join(mine))
    if world.local_world_size * len(devices) <= torch.accelerator.device_count():
        return True
    if torch.accelerator.device_count() > len(devices) or not all(mine):
        return False
    if store is None:
        return True
    of_ranks = store.multi_get([f"devices/{rank}" for rank in range(world.world_size)])
    everyones = [uuid for of_rank in of_ranks for uuid in of_rank.decode().split()]
    return len(set(everyones)) == len(everyones)
