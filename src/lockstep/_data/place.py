"""The rank of this process and the comparison of ranks, for a loader without a team."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from lockstep._base.errors import ConfigError, MismatchError
from lockstep._world.environment import read_environment


@dataclass(frozen=True, slots=True)
class Place:
    """A rank, a number of ranks, and their source."""

    rank: int
    world_size: int
    source: str

    def __str__(self) -> str:
        return f"{self.source}: rank {self.rank} of {self.world_size}"


def is_open() -> bool:
    """Return whether the script has opened a process group."""
    return dist.is_available() and dist.is_initialized()


def find_place(rank: int | None, world_size: int | None) -> Place:
    """Return the place from the arguments, the open process group or the launcher, in this order;
    otherwise 0 of 1.

    Raises:
        ConfigError: one of the two arguments is missing or out of range, or two of these sources
            disagree.
    """
    found, *others = [*_places(rank, world_size)] or [Place(0, 1, "no launcher and no process group")]
    for other in others:
        _check_equal(found, other)
    return found


def check_place(place: Place) -> None:
    """Check a place against a process group that may have been opened since it was found.

    Raises:
        ConfigError: they disagree.
    """
    if is_open():
        _check_equal(place, _of_group())


def _check_equal(one: Place, other: Place) -> None:
    if (one.rank, one.world_size) != (other.rank, other.world_size):
        raise ConfigError(
            f"resumable(): {one}, but {other}. This process would read the samples of another rank. Call resumable() after "
            "init_process_group(), or pass the rank and world size of the group."
        )


def _places(rank: int | None, world_size: int | None) -> Iterator[Place]:
    if rank is not None and world_size is not None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"resumable(rank={rank}, world_size={world_size}): ranks go from 0 to world_size - 1")
        yield Place(rank, world_size, "the arguments")
    elif rank is not None or world_size is not None:
        raise ConfigError(f"resumable(rank={rank}, world_size={world_size}): give both, or none")
    if is_open():
        yield _of_group()
    world = read_environment().world
    if world.launcher != "python":
        yield Place(world.rank, world.world_size, f"the launcher ({world.launcher})")


def _of_group() -> Place:
    return Place(dist.get_rank(), dist.get_world_size(), "the process group")


class Comparison:
    """Compares values that must be the same on every rank, over the open process group.

    It uses Gloo, in a second group if the script's group has no Gloo: the script may not have
    selected its GPU yet."""

    def __init__(self) -> None:
        self._group: Any = None

    def check(self, found: dict[str, tuple[str, str]]) -> None:
        """Collective: every rank calls it. Blocks until all have, or the group's timeout.

        Args:
            found: for each name, the value of this rank and the remedy for the error message.

        Raises:
            MismatchError: on every rank, if two ranks have different values.
        """
        if self._group is None and "gloo" not in str(dist.get_backend_config()):
            self._group = dist.new_group(backend="gloo")
        all_found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_found, {name: value for name, (value, _) in found.items()}, group=self._group)
        for name, (_, remedy) in found.items():
            for rank, other in enumerate(all_found):
                if other[name] != all_found[0][name]:
                    raise MismatchError(
                        f"the loaders of the ranks differ: {name} is {all_found[0][name]} on rank 0 and {other[name]} on rank "
                        f"{rank}. Some samples would be used twice and others never. {remedy}"
                    )
