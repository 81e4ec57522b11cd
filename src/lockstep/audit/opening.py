"""Opens the auditor of a run, if its settings ask for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lockstep.audit.auditor import Auditor
from lockstep.audit.choice import check_strategy
from lockstep.audit.verdict import Verdict
from lockstep.comm.collectives import Collectives
from lockstep.config import RunConfig
from lockstep.prepare.watched import Watched
from lockstep.stopping import say
from lockstep.sync.protocol import Sync
from lockstep.world import World


def open_audit(
    config: RunConfig,
    world: World,
    device: torch.device,
    seed: Callable[[], int],
    collectives: Collectives,
    watched: Watched,
    sync: Sync,
    write: Callable[..., Any],
) -> Auditor | None:
    """Create the auditor; None: the run is not audited.

    Args:
        config: the settings, with every default resolved.
        world: which process this is.
        device: of this process.
        seed: returns the root of the run's random streams.
        collectives: over all ranks.
        watched: the prepared objects.
        sync: the run's strategy.
        write: writes an event into the run's journal.

    Raises:
        ConfigError: a run with this strategy cannot be audited.
    """
    if config.audit == 0 or config.trace != "off":  # a trace records every shard itself
        return None
    check_strategy(config.strategy)
    assert config.shards is not None

    def report(verdict: Verdict) -> None:
        write("audit", **verdict.as_json())
        if world.rank == 0:
            say(f"ERROR: {verdict.text}")

    return Auditor(
        config.audit,
        config.shards,
        seed,
        collectives,
        watched.parameters,
        None if sync.is_plain else sync.buffers,
        f"{world.host}, {device}",
        report,
    )
