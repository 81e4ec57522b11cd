"""The seam between the engine and tools that observe a run from inside: instruments.

An instrument is the part of a tool, or of another package, that works within a training. It
registers a class under a name, in ``lockstep._base.extensions`` if it belongs to this package,
otherwise by an entry point of the group ``lockstep.instruments``. ``join()`` creates one of each on
every rank, and the engine knows none of them.

An instrument with options registers a dataclass of them under the same name for
``lockstep.options``, whose fields are made by ``lockstep.options.option``. They are then set
like all settings: by ``lockstep run``, its ``--config``, and ``join()``."""

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
    from lockstep._events.measure.passes import PassMeter
    from lockstep._events.measure.step_clock import StepClock
    from lockstep._events.writer import EventWriter
    from lockstep._listener import Listener
    from lockstep._loop.meeting import Meetings
    from lockstep._loop.phases import Phases, Position
    from lockstep._state.recovery.fingerprint import Fingerprint
    from lockstep._state.recovery.run_state import RunState
    from lockstep._state.recovery.saving import Saver
    from lockstep._state.rundir.fixed_settings import FixedSettings
    from lockstep._sync.protocol import Strategy
    from lockstep._world.comm.collectives import Collectives
    from lockstep._world.environment import World


@dataclass(frozen=True, kw_only=True)
class Run:
    """The parts of a run that its instruments may use."""

    config: RunConfig
    """The run's settings, with every default resolved."""
    world: World
    devices: tuple[torch.device, ...]
    """The devices of this process."""
    run_dir: Path
    """The run directory."""
    fixed_settings: FixedSettings
    """The settings that cannot change during the run."""
    launch_id: str
    """The identifier of this launch, the same on every rank."""
    after: int
    """The step after which this launch resumes; 0: the run begins."""
    script_settings: Mapping[str, Any]
    """The settings that the script passes to ``join``."""
    requests: Mapping[str, Any]
    """The requests of the command that started this run, by instrument; empty: the user started the
    run."""
    machines: tuple[str, ...]
    """The host name of each rank's machine."""
    collectives: Collectives
    """Collectives over all ranks."""
    events: EventWriter
    """The writer of the event log. Rank 0 writes it; other ranks discard what they pass."""

    # Parts of the engine, for instruments that come with this package: these may change with any
    # version.
    phases: Phases
    state: RunState
    strategy: Strategy
    saver: Saver
    fingerprint: Fingerprint
    stop_watch: StopWatch
    clock: StepClock
    passes: PassMeter
    meetings: Meetings

    has_deterministic_kernels: bool = False
    """Whether kernels of a GPU are deterministic, so that operations without one raise an error."""

    @property
    def position(self) -> Position:
        """Where this process is in the run now. May be read by another thread."""
        return self.phases.position()


class Instrument:
    """Base class of instruments, with methods that do nothing. They are called on every rank, in
    the order of this class.

    Args:
        asked: the request of the command that started this run to this instrument, as in
            ``Run.asked``; None: there is none, so the user started the run.
    """

    options: Any = None
    """The options of the instrument: an instance of the dataclass that is registered under its name
    for ``lockstep.options``. Set after ``given`` was called."""

    def __init__(self, asked: Any = None) -> None:
        self.asked = asked

    def given(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the settings to use instead of the ones that the script passes to ``join``."""
        return settings

    def settings(self, config: RunConfig) -> RunConfig:
        """Returns the settings of this launch, based on the combined settings of the script and the
        command line."""
        return config

    def listeners(self, run: Run) -> Iterable[Listener]:
        """Returns the listeners to notify of the run's steps. May communicate, if it does so on
        every rank."""
        return ()

    def notices(self, run: Run) -> Iterable[str]:
        """Returns lines to print when the run begins. Called on rank 0 only."""
        return ()


def make_instruments(asked: Mapping[str, Any]) -> dict[str, Instrument]:
    """Creates one of each installed instrument, and returns them by name.

    Args:
        asked: the requests by instrument, as in ``Run``.

    Raises:
        ConfigError: a requested instrument is not installed, or one cannot be imported.
    """
    names = extensions.names("instruments")
    for name in asked:
        if name not in names:
            raise unknown_name("instrument", name, names)
    return {name: extensions.load_for_runs("instruments", name)(asked.get(name)) for name in names}
