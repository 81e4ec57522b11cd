"""The changes of a trial to its script's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """The changes, by field of ``RunConfig``."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings for a script that does not set them."""
    instead: Mapping[str, Any] = field(default_factory=dict)
    """Settings that override the script's."""
    is_held: bool = False
    """Whether the processes wait to be killed once their first checkpoint is on disk and another
    step was taken."""

    def chosen(self, settings: Mapping[str, Any]) -> frozenset[str]:
        """The names of the defaults that the script leaves to this trial."""
        return frozenset(name for name in self.defaults if settings.get(name) is None)

    def applied_to(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The script's settings in this trial."""
        given = {name: value for name, value in settings.items() if value is not None}
        return {**settings, **self.defaults, **given, **self.instead}
