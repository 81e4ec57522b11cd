"""Opens the auditor of a run, if its settings ask for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lockstep.comm.collectives import Collectives
from lockstep.config import RunConfig
from lockstep.plan.shards import StepPlan
from lockstep.stopping import say
from lockstep.sync.protocol import Sync
from lockstep.tools.audit.auditor import Auditor
from lockstep.tools.audit.choice import Choice, check_strategy, choose
from lockstep.tools.audit.verdict import Verdict
from lockstep.world import World


def open_audit(
    config: RunConfig,
    world: World,
    devices: Sequence[torch.device],
    seed: Callable[[], int],
    collectives: Collectives,
    sync: Sync,
    write: Callable[..., Any],
) -> Auditor | None:
    """Create the auditor; None: the run is not audited.

    Args:
        config: the settings, with every default resolved.
        world: which process this is.
        devices: of this process.
        seed: returns the root of the run's random streams.
        collectives: over all ranks.
        sync: the run's strategy.
        write: writes an event into the run's journal.

    Raises:
        ConfigError: a run with this strategy cannot be audited.
    """
    if config.audit == 0 or config.trace != "off":  # a trace records every shard itself
        return None
    check_strategy(config.strategy)
    every, num_shards = config.audit, config.shards
    assert num_shards is not None
    if devices[0].type == "cuda" and world.rank == 0 and not torch.are_deterministic_algorithms_enabled():
        say(
            "WARNING: audit: without torch.use_deterministic_algorithms(True) before lockstep.join(), GPU kernels may give "
            "different bits each time, and an audit ends the run if they do"
        )

    def chosen(step: int, plan: StepPlan) -> Choice | None:
        if step % every:
            return None
        return choose(
            seed=seed(),
            step=step,
            every=every,
            num_filled=min(max(plan.sizes), num_shards),
            num_shards=num_shards,
            world_size=collectives.size,
        )

    def report(verdict: Verdict) -> None:
        write("audit", **verdict.as_json())
        if world.rank == 0:
            say(f"ERROR: {verdict.text}")

    return Auditor(
        chosen,
        collectives,
        None if sync.is_plain else sync.buffers,
        f"{world.host}, {devices[0]}",
        devices,
        report,
    )
