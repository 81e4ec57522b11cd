"""The file that ``lockstep tune`` writes: settings of a script's loader, and the situation they were measured in."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.base.atomic import write_atomic
from lockstep.base.errors import ConfigError
from lockstep.base.regular import read_bytes
from lockstep.base.shapes import check, parse
from lockstep.plan.loading import Loading

_FORMAT = 1
_KIND = "lockstep tune"


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a loader's best settings depend on."""

    script: str
    """Its resolved path."""
    script_sha256: str | None
    num_cores: int
    """Of this machine, for all processes."""
    local_world_size: int
    """Processes on this machine."""
    world_size: int
    device: str
    """``cpu`` or ``cuda``."""
    args: Sequence[str] = ()
    """Arguments of the script, on which its loader may depend."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best settings measured for one loader of a script. None of them changes an answer."""

    situation: Situation
    loader: int
    """Number of the loader among those that the script prepares, from 1."""
    loading: Loading
    """Its settings; those that are None stay as the script has them."""
    host: str = ""
    date: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """For human readers: costs, and the time of each trial."""

    def loading_of(self, number: int) -> Loading:
        """The settings of a loader."""
        return self.loading if number == self.loader else Loading()

    def write(self, path: Path) -> None:
        """Save it.

        Raises:
            ConfigError: a file of another kind is there, or it cannot be written.
        """
        try:
            if path.exists():
                read(path)
            content = {"kind": _KIND, "format": _FORMAT, **dataclasses.asdict(self)}
            write_atomic(path, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}. Give another file: --out FILE") from error


def read(path: Path) -> Tuned:
    """What ``Tuned.write`` saved.

    Raises:
        ConfigError: it cannot be read, or is another kind of file.
    """
    try:
        content = parse(read_bytes(path))
        if not isinstance(content, dict) or content.pop("kind", None) != _KIND:
            raise ConfigError(f"{path} is not a file of lockstep tune: `lockstep tune SCRIPT` writes one")
        if (version := content.pop("format", None)) != _FORMAT:
            raise ConfigError(
                f"{path} has format {version}, and this lockstep knows format {_FORMAT}: measure again with lockstep tune"
            )
        situation, loading = Situation(**content.pop("situation")), check(Loading(**content.pop("loading")), "loading.")
        return check(Tuned(situation=situation, loading=loading, **content))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}. `lockstep tune SCRIPT` writes such a file") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read as a file of lockstep tune ({error}): measure again") from error


def check_script(tuned: Tuned, script: str, sha256: str | None, path: str) -> bool:
    """Whether the script is, to the byte, the one that a file was measured for; False: it has changed since.

    Raises:
        ConfigError: it is another script.
    """
    then = tuned.situation
    if then.script_sha256 is not None and then.script_sha256 == sha256:
        return True
    if then.script != script:
        raise ConfigError(
            f"tuned: {path} was measured for {then.script}, but this is {script or 'no script'}, which has a different "
            "loader. Leave --tuned out, or measure this one: lockstep tune"
        )
    return False


def fit(tuned: Tuned, now: Situation, path: str) -> tuple[Tuned | None, str]:
    """The settings of a file that apply here, None if they do not, and a line that says so.

    Raises:
        ConfigError: it was measured for another script.
    """
    then = tuned.situation
    is_same_text = check_script(tuned, now.script, now.script_sha256, path)
    names = {
        "world_size": "processes",
        "local_world_size": "processes on a machine",
        "num_cores": "cores",
        "device": "device",
    }
    differing = [
        f"{word}: {getattr(then, name)} then, {getattr(now, name)} now"
        for name, word in names.items()
        if getattr(then, name) != getattr(now, name)
    ]
    if differing:
        return None, (
            f"tuned: {path} is not applied, because it was measured elsewhere ({'; '.join(differing)}): the loader stays as "
            "the script has it. Measure here: lockstep tune"
        )
    if tuned.loading == Loading():
        return tuned, f"tuned: {path} found nothing to gain: the loader stays as the script has it"
    remarks = "" if is_same_text else "; the script has changed since, so measure again if its loader has"
    if list(then.args) != list(now.args):
        args = f"with {shlex.join(then.args)}" if then.args else "without arguments"
        remarks += f"; it was measured {args}, so measure again if the loader depends on them"
    return tuned, f"tuned: {tuned.loading} for loader {tuned.loader} ({path}{remarks})"
