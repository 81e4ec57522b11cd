"""The request of a test, checked, and the settings under which its function runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep._base.errors import ConfigError
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.settings import default_shards, expand

LIMIT_S = 120.0
"""The default time limit of a test, in seconds."""
_OWN = ("run_dir", "fresh", "checkpoint_every", "trace", "trace_until", "progress", "track")
"""The settings of a run that a test sets itself."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to compare runs.

    Raises:
        ConfigError: there is nothing to compare, or a value is invalid.
    """

    worlds: Sequence[int]
    """The numbers of processes. The other runs are compared with the first."""
    fit_also: Sequence[int] = ()
    """Further numbers of processes for which a V that is chosen here must be sufficient."""
    shards: int | None = None
    """The number of shards; None: as in the function, otherwise the smallest power of two that is
    sufficient."""
    kill: bool = False
    compare_result: bool = True
    limit_s: float = LIMIT_S
    """The time limit of all runs together, in seconds."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of every run."""

    def __post_init__(self) -> None:
        worlds = checked_worlds(self.worlds, "worlds")
        object.__setattr__(self, "worlds", worlds)
        if len(worlds) == 1 and not self.kill:
            raise ConfigError(
                f"worlds={worlds} is one number of processes, so there is nothing to compare. Use two or more, or kill=True.",
                code="nothing-to-compare",
            )
        shards = self.shards
        if shards is not None and (isinstance(shards, bool) or not isinstance(shards, int) or shards < max(worlds)):
            raise ConfigError(
                f"shards={shards!r} with worlds={worlds}: each process needs at least one shard. Use shards={max(worlds)} or "
                "more, or fewer processes.",
                code="world-size-above-shards",
            )
        if not isinstance(self.limit_s, (int, float)) or not self.limit_s > 0:
            raise ConfigError(
                f"limit_s={self.limit_s!r}: expected the time limit of all runs together, in seconds, above 0.",
                code="limit-invalid",
            )
        for name in _OWN:
            if name in self.settings:
                raise ConfigError(
                    f"{name}={self.settings[name]!r}: a test sets {name} itself, since its runs are traced in a temporary "
                    "directory. Remove it.",
                    code="setting-of-test",
                )

    @property
    def chosen_shards(self) -> int:
        """The V for a function that does not set it."""
        return self.shards or default_shards((*self.worlds, *self.fit_also))

    def runs(self) -> tuple[Setting, ...]:
        """The runs, in order. The last two, with ``kill``, resume one that was killed on another
        number of processes: one in its first epoch, one in its last."""
        return expand(self.worlds, (None,), ("local",), self.shards, resumes=self.kill)


def checked_worlds(worlds: object, name: str) -> tuple[int, ...]:
    """Returns numbers of processes, each once.

    Args:
        worlds: the value to check.
        name: the name under which the user passed it.

    Raises:
        ConfigError: the numbers are not 1 or more, or there are none.
    """
    given = tuple(worlds) if isinstance(worlds, Sequence) and not isinstance(worlds, (str, bytes)) else ()
    if not given or not all(isinstance(world, int) and not isinstance(world, bool) and world >= 1 for world in given):
        raise ConfigError(
            f"{name}={worlds!r}: expected numbers of processes, each 1 or more, for example (1, 2, 4).",
            code="worlds-invalid",
        )
    return tuple(dict.fromkeys(given))
