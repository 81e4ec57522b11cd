"""Opens the listeners that trace a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from lockstep.config import RunConfig
from lockstep.listener import Listener
from lockstep.tools.verify.diagnosis.evidence import Evidence
from lockstep.tools.verify.diagnosis.first_gradient import FirstGradient
from lockstep.tools.verify.diagnosis.kernels import watch_kernels
from lockstep.tools.verify.diagnosis.witness import Witness
from lockstep.tools.verify.trace.lines import TraceWriter
from lockstep.tools.verify.trace.recorder import Recorder
from lockstep.tools.verify.trace.subjects import Subjects
from lockstep.world import World


def begin_trace(
    config: RunConfig, world: World, device: torch.device, run_dir: Path, level: str, chosen: Collection[str] = ()
) -> TraceWriter:
    """Begin this process's trace with a line about the run; ``level``: how much is traced, ``chosen``: see ``RunContext``."""
    writer = TraceWriter(run_dir, f"rank-{world.rank}")
    writer.write(
        event="start",
        level=level,
        rank=world.rank,
        world_size=world.world_size,
        shards=config.shards,
        seed=config.seed,
        threads=config.threads,
        strategy=config.strategy,
        precision=config.precision,
        device=device.type,
        launcher=world.launcher,
        chosen=sorted(chosen),
        checkpoint_every=config.interval,
    )
    return writer


def open_trace(
    config: RunConfig,
    world: World,
    device: torch.device,
    run_dir: Path,
    registered: Mapping[str, Any],
    chosen: Collection[str],
) -> list[Listener]:
    """Begin this process's trace as ``RunConfig.trace`` says. Returns the listeners, to be notified in this order.

    Args:
        config: the run's.
        world: this process's place.
        device: this process's.
        run_dir: the run's directory.
        registered: the contents of ``RunState.registered``, by name.
        chosen: see ``RunContext``.
    """
    writer = begin_trace(config, world, device, run_dir, config.trace, chosen)
    subjects = Subjects(registered)
    observers: list[Listener] = []
    layers = None
    if config.trace == "gradient":
        observers = [FirstGradient(writer, subjects)]
    elif config.trace == "calls":
        evidence = Evidence(run_dir, world.rank)
        witness = Witness(subjects, evidence)
        observers, layers = [witness, evidence], witness.take_layers
    elif config.trace == "kernels":
        evidence = Evidence(run_dir, world.rank)
        watch_kernels(evidence)
        observers = [evidence]
    return [subjects, Recorder(writer, subjects, config.trace_until, layers), *observers]
