"""What measures the loader of a run for ``lockstep tune``, and what applies the settings that were found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.config import without_tools
from lockstep.base.errors import ConfigError
from lockstep.base.option import TRAINING, option
from lockstep.joining.instrument import Instrument, Run
from lockstep.state.rundir.birth import Command, script_sha256
from lockstep.tools.tune.request import TuningRequest
from lockstep.tools.tune.tuned import Situation, Tuned, check_script, fit, read
from lockstep.world.environment import World, read_environment
from lockstep.world.machine.cores import num_cores

if TYPE_CHECKING:
    from lockstep.base.config import RunConfig
    from lockstep.listener import Listener


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Settings of a run."""

    tuned: str | None = option(None, group=TRAINING, metavar="FILE")
    """File of lockstep tune: apply its settings to the loader that it has measured; the answer stays the same.  [default:
    none]"""


class Tuning(Instrument):
    """Asked to measure, by field of ``TuningRequest``; or in runs with the option ``tuned``."""

    options: TuneOptions

    def __init__(self, asked: Any = None) -> None:
        super().__init__(asked)
        self._request = None if asked is None else TuningRequest(**asked)
        self._tuned: Tuned | None = None
        self._notice: str | None = None

    def given(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """A run that is measured has nothing beside it that takes time."""
        return settings if self.asked is None else {**without_tools(settings), "journal_every": 0}

    def settings(self, config: RunConfig) -> RunConfig:
        """A run that is measured is thrown away. The file ``tuned`` is read before anything is written.

        Raises:
            ConfigError: the file cannot be read, or was measured for another script, or the number of workers is given, too.
        """
        if self._request is not None:
            return self._request.settings(config)
        tuned = self.options.tuned
        if tuned is not None and config.workers is not None:
            raise ConfigError(f"workers={config.workers} and tuned={tuned!r} both set the loader workers: leave out one")
        if tuned is not None:
            self._tuned = read(Path(tuned))
            command = _command(read_environment().world)
            check_script(self._tuned, command.script, _sha256(command), tuned)
        return config

    def listeners(self, run: Run) -> Iterable[Listener]:
        """What measures loaders, or gives them their settings."""
        if self._request is None and self._tuned is None:
            return ()
        from lockstep.tools.tune.loaders import Measuring, TunedLoaders  # with torch

        situation = _situation(run)
        if self._request is not None:
            return (Measuring(run, self._request, situation),)
        assert self._tuned is not None
        tuned, self._notice = fit(self._tuned, situation, str(self.options.tuned))
        return () if tuned is None else (TunedLoaders(tuned),)

    def notices(self, run: Run) -> Iterable[str]:
        """Which settings are applied."""
        return () if self._notice is None else (self._notice,)


def _command(world: World) -> Command:
    return Command.of_this_process(0, is_program=world.is_program, explicit={})


def _sha256(command: Command) -> str | None:
    return script_sha256(Path(command.script)) if command.script else None


def _situation(run: Run) -> Situation:
    """What the best settings of a loader depend on."""
    world, command = run.world, _command(run.world)
    return Situation(
        script=command.script,
        script_sha256=_sha256(command),
        args=command.args,
        num_cores=world.num_cores or num_cores(),
        local_world_size=world.local_world_size,
        world_size=world.world_size,
        device=run.devices[0].type,
    )
