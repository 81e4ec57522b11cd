"""The settings under which ``lockstep verify`` runs a script: all of them must give the same answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.analysis.methods import parse_nprocs
from lockstep.analysis.results import counted
from lockstep.errors import ConfigError, unknown_name

LAUNCHERS = ("local", "torchrun")
"""``local`` is ``lockstep run``."""
DEFAULT_WORLD_SIZES = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What may differ between two runs without changing the answer."""

    number: int
    """Place in the verification, from 1."""
    world_size: int
    workers: int | None = None
    """Loader workers of each process; None: as the script says."""
    launcher: str = "local"

    @property
    def label(self) -> str:
        """What a line calls it."""
        words = [f"{self.world_size} process{'es' if self.world_size > 1 else ''}"]
        if self.workers is not None:
            words.append(counted(self.workers, "loader worker"))
        if self.launcher != "local":
            words.append(self.launcher)
        return ", ".join(words)

    @property
    def slug(self) -> str:
        """A name for the run's directory."""
        workers = "" if self.workers is None else f"-workers{self.workers}"
        return f"{self.number}-x{self.world_size}{workers}-{self.launcher}"


def default_world_sizes(*, num_cores: int, num_cards: int) -> tuple[int, ...]:
    """1, 2 and 4; no more than twice the cores, and than the cards where there are several."""
    largest = num_cards if num_cards > 1 else 2 * num_cores
    return tuple(size for size in DEFAULT_WORLD_SIZES if size <= largest)


def parse_world_sizes(text: str) -> tuple[int, ...]:
    """Numbers of processes with commas between, each once, smallest first.

    Raises:
        ConfigError: one is not a whole number of at least 1, or there is none.
    """
    try:
        return parse_nprocs(text)
    except ConfigError:
        raise ConfigError(
            f"--world-sizes {text}: write whole numbers of at least 1 with commas between them, for example 1,2,4"
        ) from None


def parse_workers(text: str | None) -> tuple[int | None, ...]:
    """Numbers of loader workers with commas between, each once; None: as the script has them.

    Raises:
        ConfigError: one is not a whole number, or there is none.
    """
    if text is None:
        return (None,)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"--workers {text}: write whole numbers, 0 or more, with commas between them, for example 0,2")
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_launchers(text: str) -> tuple[str, ...]:
    """Launchers with commas between, each once.

    Raises:
        ConfigError: one is not known, or there is none.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in LAUNCHERS:
            raise unknown_name("launcher", name, LAUNCHERS)
    if not names:
        raise ConfigError(f"--launchers {text!r} names none: choose of {', '.join(LAUNCHERS)}")
    return names


def expand(
    world_sizes: Sequence[int], workers: Sequence[int | None], launchers: Sequence[str], shards: int | None
) -> tuple[Setting, ...]:
    """Every combination, the one that the others are compared with first.

    Raises:
        ConfigError: there are fewer shards than processes in one, or there is only one.
    """
    largest = max(world_sizes)
    if shards is not None and shards < largest:
        raise ConfigError(
            f"--shards {shards} with {largest} processes: a process without a shard would have nothing to do. Ask for "
            f"--shards {largest} or more, or for fewer processes with --world-sizes."
        )
    combinations = [(size, number, launcher) for launcher in launchers for number in workers for size in world_sizes]
    if len(combinations) < 2:
        raise ConfigError(
            "there is one setting only, and nothing to compare it with: give --world-sizes, --workers or --launchers "
            "several values"
        )
    return tuple(
        Setting(number=place, world_size=size, workers=number, launcher=launcher)
        for place, (size, number, launcher) in enumerate(combinations, start=1)
    )
