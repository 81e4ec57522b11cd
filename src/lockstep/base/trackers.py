"""The names of trackers, to which a run's values can be written besides its journal. Other packages add theirs by entry points
of the group ``lockstep.trackers``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.base import extensions
from lockstep.base.errors import ConfigError, unknown_name

OFF = "off"


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """A tracker that lockstep supports by name."""

    package: str
    """Its module, with wandb's interface: ``init(project=, name=, config=, dir=, id=, resume=)``, ``log(values, step=)`` and
    ``finish()``. (TensorBoard has an adapter of its own.)"""
    project_variable: str = ""
    """The environment variable in which its users name the project."""


TRACKERS = {
    "tensorboard": Tracker(package="tensorboard"),
    "wandb": Tracker(package="wandb", project_variable="WANDB_PROJECT"),
    "trackio": Tracker(package="trackio", project_variable="TRACKIO_PROJECT"),
}


def check_track(value: Any) -> tuple[str, ...] | None:
    """``RunConfig.track`` in canonical form: names, each with a project if one is given, as in ``wandb:birds``.

    Raises:
        ConfigError: a name is unknown.
    """
    if value is None:
        return None
    if not isinstance(value, str) and not (isinstance(value, Iterable) and all(isinstance(item, str) for item in value)):
        raise ConfigError(f"track={value!r}: give names: {', '.join([*TRACKERS, *extensions.names('trackers'), OFF])}")
    texts = [value] if isinstance(value, str) else list(value)
    names = tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))
    for name in names:
        kind = name.partition(":")[0]
        if kind not in TRACKERS and kind != OFF and kind not in extensions.names("trackers"):
            raise unknown_name("tracker", kind, [*TRACKERS, *extensions.names("trackers"), OFF])
    if not names or (OFF in names and len(names) > 1):
        raise ConfigError(f"track={value!r}: give names with commas between them, or off alone")
    return names


def without_services(track: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """``RunConfig.track`` without the trackers that write outside of the run directory."""
    if track is None:
        return None
    return ("tensorboard",) if "tensorboard" in track else (OFF,)
