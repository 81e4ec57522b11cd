"""The settings that determine a run's results, which are fixed when it is created: saved in its
directory as ``birth.json``, and applied by later launches. (Where a name must be short they are the
run's ``birth``.)

A later launch need not repeat them. On other hardware its defaults would differ (shards follow from
the number of processes, threads from the cores), and with them the results. So the saved values
apply, and an explicit setting that differs is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lockstep._base.atomic import write_atomic
from lockstep._base.config import ALLOWABLE, AskedSettings, RunConfig
from lockstep._base.errors import ConfigError, UnfitFileError
from lockstep._base.regular_files import read_bytes
from lockstep._base.shapes import check, parse

_FILE_NAME = "birth.json"
_FORMAT = 2
_MOST_BYTES = 1 << 24
NO_SCRIPT = ("", "-c", "-")
_OF_LAUNCHERS = ("--local_rank=", "--local-rank=")
"""The arguments that some launchers add to a script's, ignored when commands are compared."""


@dataclass(frozen=True, kw_only=True)
class FixedSettings:
    """The settings that, with the script and the data, determine a run's results."""

    shards: int
    exact: bool
    """Whether bit-identical results are promised: several shards are summed in the fixed tree."""
    accumulate: int
    seed: int
    threads: int
    precision: str
    device: str
    """The kind of device: ``cpu``, ``cuda`` ...."""
    nondeterministic: tuple[str, ...] = ()
    """The operations that may run without a deterministic kernel."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nondeterministic", tuple(self.nondeterministic))  # JSON has lists

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON object for files."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command of a run. The same command, repeated, refers to the same run."""

    script: str
    """The resolved path of the script; empty: there is none (an interactive session). Commands
    without a script are never equal."""
    args: tuple[str, ...]
    number: int
    """The number of the run among the runs that one process joins."""
    part: str = ""
    """A name that separates runs of one command: the task of a job array (see ``Job.part``)."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The fixed settings (and the strategy) that were set explicitly, on the command line or in the
    script."""

    def is_like(self, other: Command) -> bool:
        """Returns whether both are the same except for their settings."""
        return dataclasses.replace(self, settings={}) == dataclasses.replace(other, settings={})

    def differs_in_args(self, other: Command) -> bool:
        """Returns whether the script's arguments differ, and all else but the settings is the
        same."""
        return self.args != other.args and dataclasses.replace(self, args=other.args).is_like(other)

    def differing(self, earlier: Command, allow: Collection[str] = ()) -> list[str]:
        """Returns the names of settings that differ and are not in ``allow``."""
        names = sorted((self.settings.keys() | earlier.settings.keys()) - set(allow))
        return [name for name in names if self.settings.get(name) != earlier.settings.get(name)]

    @staticmethod
    def of_this_process(number: int, *, is_program: bool, asked: AskedSettings, part: str = "") -> Command:
        """Returns the command of this process. (A function that was started in a new process has no
        script.)"""
        script = sys.argv[0] if sys.argv else ""
        path = str(Path(script).resolve()) if is_program and script not in NO_SCRIPT else ""
        names = {"strategy", *(setting.name for setting in fields(FixedSettings))}
        values = {name: getattr(asked.run, name) for name in asked.givers if name in names}
        # As they are read again from JSON.
        settings = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return Command(script=path, args=own_args(), number=number, part=part, settings=settings)


def own_args() -> tuple[str, ...]:
    """Returns the arguments of this process's script, without arguments that launchers add."""
    return tuple(arg for arg in sys.argv[1:] if not arg.startswith(_OF_LAUNCHERS))


def script_sha256(path: Path) -> str | None:
    """Returns the SHA-256 of a script; None: it cannot be read."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except OSError:
        return None


def write_fixed_settings(path: Path, birth: FixedSettings, command: Command) -> None:
    """Saves the fixed settings of a new run in its directory."""
    content = {"format": _FORMAT, "command": dataclasses.asdict(command), **birth.as_json()}
    write_atomic(path / _FILE_NAME, json.dumps(content, indent=2) + "\n", durable=True)


def read_fixed_settings(path: Path) -> tuple[FixedSettings, Command] | None:
    """Returns the fixed settings of the run in a directory, and the command that started it; None:
    there is no run.

    Raises:
        ConfigError: the file cannot be read, or another version wrote it.
    """
    file = path / _FILE_NAME
    try:
        content = parse(read_bytes(file, _MOST_BYTES))
        version = content.pop("format")
        if version == _FORMAT:
            command = content.pop("command")
            # This checks the values. (A run without --device may be on a kind that the option does
            # not name.)
            RunConfig(**{name: value for name, value in content.items() if name not in ("exact", "device")})
            return check(FixedSettings(**content)), check(Command(**{**command, "args": tuple(command["args"])}))
    except FileNotFoundError:
        return None
    except (UnfitFileError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{file} cannot be read as the settings of a run ({error}). Use another run directory.", code="birth-unreadable"
        ) from error
    raise ConfigError(
        f"{file} has format {version}, but this lockstep reads format {_FORMAT}. Use the version that wrote it, or another "
        "run directory.",
        code="birth-format",
    )


def reconcile(
    path: Path,
    birth: FixedSettings,
    givers: Mapping[str, str],
    now: FixedSettings,
    allow: Collection[str] = (),
    *,
    strategy: str = "auto",
) -> FixedSettings:
    """Returns the settings with which a launch resumes: the saved ones, except where others are
    allowed.

    Args:
        givers: where settings of this launch were set, as in ``AskedSettings``.
        now: the fixed settings that a new run would have.
        allow: the names of settings that may differ.
        strategy: of this launch, for the message about it.

    Raises:
        ConfigError: a setting that was set differs from the birth and is not in ``allow``.
    """
    # The device counts even if it was not set: a run on a GPU has other results than on a CPU, and
    # the saved device may not exist here.
    changed: dict[str, Any] = {}
    for name, was in birth.as_json().items():
        wanted = getattr(now, name)
        if name in allow:
            if name in givers or name == "device":
                changed[name] = wanted
        elif name == "exact":
            if wanted != was and birth.shards > 1 and "strategy" in givers:
                raise _other_strategy(path, birth, f"{strategy!r} {givers['strategy']}")
        elif wanted != was and (name in givers or name == "device"):
            where = f" {givers[name]}" if name in givers else ""
            raise ConfigError(
                f"{name} is {wanted!r}{where}, but the run in {path} was started with {was!r}, so results would change. "
                f"Set {name} to {was!r}, or start a new run with --fresh or in another directory"
                + (f", or accept different results with --allow {name}." if name in ALLOWABLE else "."),
                code="fixed-setting-changed",
            )
    return dataclasses.replace(birth, **changed)


def _other_strategy(path: Path, birth: FixedSettings, now: str) -> ConfigError:
    born = "strategy 'exact' (the default, with bit-identical results)" if birth.exact else "another strategy"
    return ConfigError(
        f"strategy is {now}, but the run in {path} was started with {born}: gradients would be added in a different order. "
        "Remove the setting, or start a new run in another directory.",
        code="strategy-changed",
    )
