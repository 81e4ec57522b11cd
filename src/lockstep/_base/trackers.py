"""The names of experiment trackers, to which a run's values can be written in addition to its event
log: ``tensorboard``, or modules with wandb's interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lockstep._base.errors import ConfigError

OFF, TENSORBOARD = "off", "tensorboard"


def check_track(value: Any) -> tuple[str, ...] | None:
    """Returns ``RunConfig.track`` in canonical form: names, each with its project if one is set, as
    in ``wandb:birds``.

    Raises:
        ConfigError: it has another form.
    """
    if value is None:
        return None
    is_names = isinstance(value, str) or (isinstance(value, Iterable) and all(isinstance(item, str) for item in value))
    texts = ([value] if isinstance(value, str) else list(value)) if is_names else []
    names = tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))
    if not names or (OFF in names and len(names) > 1):
        raise ConfigError(
            f"track={value!r}: expected names separated by commas (tensorboard, wandb, ...), or off alone.",
            code="track-invalid",
        )
    return names


def without_services(track: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns ``RunConfig.track`` without the trackers that write outside of the run directory."""
    if track is None:
        return None
    return (TENSORBOARD,) if TENSORBOARD in track else (OFF,)
