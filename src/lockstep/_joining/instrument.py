"""The seam between the engine and what looks at a run from inside: instruments.

An instrument is the part of a tool, or of another package, that works within a training. It
registers a class under a name of its own, in ``lockstep._base.extensions`` if it comes with this
package, and else by an entry point of the group ``lockstep.instruments``. ``join()`` creates one of
each on every rank, and the engine knows none of them.

One that has options registers a dataclass of them under the same name for ``lockstep.options``,
whose fields are made by ``lockstep.options.option``. They are then given like all settings: by
``lockstep run``, its ``--config``, and ``join()``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep._base import extensions
from lockstep._base.errors import unknown_name

if TYPE_CHECKING:  # so that an instrument can be imported without torch
    from pathlib import Path

    import torch

    from lockstep._base.config import RunConfig
    from lockstep._base.stopping import StopWatch
    from lockstep._journal.measure.passes import PassMeter
    from lockstep._journal.measure.step_clock import StepClock
    from lockstep._journal.writer import EventWriter
    from lockstep._listener import Listener
    from lockstep._loop.meeting import Meetings
    from lockstep._loop.phases import Phases, Position
    from lockstep._state.recovery.fingerprint import Fingerprint
    from lockstep._state.recovery.run_state import RunState
    from lockstep._state.recovery.saving import Saver
    from lockstep._state.rundir.fixed_settings import FixedSettings
    from lockstep._sync.protocol import Sync
    from lockstep._world.comm.collectives import Collectives
    from lockstep._world.environment import World


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run offers its instruments."""

    config: RunConfig
    """The run's settings, with every default resolved."""
    world: World
    devices: tuple[torch.device, ...]
    """Those of this process."""
    run_dir: Path
    birth: FixedSettings
    """What must not change during the run."""
    token: str
    """Identifies this launch; the same on every rank."""
    after: int
    """The step after which this launch resumes; 0: it begins."""
    given: Mapping[str, Any]
    """The settings that the script gives itself."""
    asked: Mapping[str, Any]
    """What the command that has started this run asks, by instrument; empty: the run is one of the
    user's own."""
    hosts: tuple[str, ...]
    """The host of each rank."""
    collectives: Collectives
    """Over all ranks."""
    journal: EventWriter
    """Rank 0 writes it; on other ranks it takes what it is given, and writes nothing."""

    # Parts of the engine, for instruments that come with this package: these may change with any
    # version.
    phases: Phases
    state: RunState
    sync: Sync
    saver: Saver
    fingerprint: Fingerprint
    stop_watch: StopWatch
    clock: StepClock
    passes: PassMeter
    meetings: Meetings

    @property
    def position(self) -> Position:
        """Where this process is in the run now. May be read by another thread."""
        return self.phases.position()


class Instrument:
    """Base class of instruments, with methods that do nothing. They are called on every rank, in
    the order given here.

    Args:
        asked: what the command that has started this run asks of this instrument, as it has given
            it to ``lockstep._world.environment.mode``; None: nothing, so this is one of the user's
            own runs.
    """

    options: Any = None
    """Its options: an instance of the dataclass that has registered under its name for
    ``lockstep.options``. Set once ``given`` has been called."""

    def __init__(self, asked: Any = None) -> None:
        self.asked = asked

    def given(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings to take for those that the script gives ``join``."""
        return settings

    def settings(self, config: RunConfig) -> RunConfig:
        """The settings of this launch, in place of what the script and the command line give
        together."""
        return config

    def listeners(self, run: Run) -> Iterable[Listener]:
        """Who is to be notified of the run's steps. May communicate, if it does so on every
        rank."""
        return ()

    def notices(self, run: Run) -> Iterable[str]:
        """Lines to print as the run begins. Called on rank 0 alone."""
        return ()


def make_instruments(asked: Mapping[str, Any]) -> dict[str, Instrument]:
    """One of each installed instrument, by name.

    Args:
        asked: see ``Run``.

    Raises:
        ConfigError: an instrument that something is asked of is not installed, or one cannot be
            imported.
    """
    names = extensions.names("instruments")
    for name in asked:
        if name not in names:
            raise unknown_name("instrument", name, names)
    return {name: extensions.load_for_runs("instruments", name)(asked.get(name)) for name in names}
