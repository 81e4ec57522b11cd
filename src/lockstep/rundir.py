"""The directory of a run, and its birth: the settings that fix the answer, saved once and applied ever after."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.config import RunConfig
from lockstep.errors import ConfigError

_FILE_NAME = "birth.json"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Birth:
    """What a run is fixed by when it is born, next to its script and data."""

    shards: int
    exact: bool
    """Whether the answer is promised to the bit: shards are added up in the fixed tree."""
    accumulate: int
    seed: int
    threads: int
    precision: str
    device: str
    """``cpu`` or ``cuda``."""


def default_run_dir(parent: Path, script: str) -> Path:
    """A new directory ``<parent>/<script's name>-<n>`` with the lowest free n. It exists afterwards."""
    stem = Path(script).stem if script not in ("", "-c", "-") else "run"
    if stem == "__main__":  # python -m package
        stem = Path(script).absolute().parent.name
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = parent / f"{stem}-{number}"
        try:
            path.mkdir()  # atomic: two runs started at once get two directories
        except FileExistsError:
            number += 1
        else:
            return path


def open_run_dir(config: RunConfig, explicit: Mapping[str, Any], born_with: Birth) -> tuple[Path, Birth]:
    """The run's directory and its birth: that of an earlier launch if there is one, else ``born_with``, saved.

    To be called by one process of the run.

    Args:
        config: the settings of this launch.
        explicit: those of them that were given by name, on the command line or in the script.
        born_with: the birth of a new run with these settings.

    Raises:
        ConfigError: an explicit setting differs from the birth, or the birth cannot be read or applied here.
    """
    try:
        if config.run_dir is None:
            path = default_run_dir(Path("runs"), sys.argv[0] if sys.argv else "")
        else:
            path = Path(config.run_dir)
            path.mkdir(parents=True, exist_ok=True)
        file = path / _FILE_NAME
        if file.exists():
            return path, _reconcile(file, _read(file), explicit, born_with)
        unfinished = path / (_FILE_NAME + ".new")
        unfinished.write_text(json.dumps({"format": _FORMAT, **dataclasses.asdict(born_with)}, indent=2) + "\n")
        unfinished.replace(file)
    except OSError as error:
        raise ConfigError(
            f"the run directory cannot be used: {error}. Give another one with run_dir= or --run-dir."
        ) from error
    return path, born_with


def _read(file: Path) -> Birth:
    try:
        fields = json.loads(file.read_text())
        version = fields.pop("format")
        if version == _FORMAT:
            birth = Birth(**fields)
            RunConfig(**{name: value for name, value in fields.items() if name != "exact"})  # checks the values
            return birth
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read as a run's birth ({error}): use another run directory") from error
    raise ConfigError(
        f"{file} has format {version}, and this lockstep knows format {_FORMAT}: it was written by another version. "
        "Use that one, or another run directory."
    )


def _reconcile(file: Path, birth: Birth, explicit: Mapping[str, Any], now: Birth) -> Birth:
    for name, was in dataclasses.asdict(birth).items():
        wanted = getattr(now, name)
        if name == "exact":
            _check_promise(file, was, wanted, explicit)
        elif wanted != was and (explicit.get(name) not in (None, "auto") or name == "device"):
            raise ConfigError(
                f"{name} is {wanted!r} now, and was {was!r} when the run in {file.parent} was born: the answer would "
                f"be another. Leave {name} as it was, or start a new run in another directory."
            )
    return birth


def _check_promise(file: Path, was: bool, wanted: bool, explicit: Mapping[str, Any]) -> None:
    strategy = explicit.get("strategy")
    if wanted != was and strategy not in (None, "auto"):
        born = "with shards= or strategy='exact', which promises its answer to the bit" if was else "without shards="
        raise ConfigError(
            f"strategy is {strategy!r} now, and the run in {file.parent} was born {born}: gradients would be added up in "
            "another order. Leave strategy out, or start a new run in another directory."
        )
