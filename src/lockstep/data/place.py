"""Which part of each global batch is this process's, for a loader that has no team."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from lockstep.base.errors import ConfigError, MismatchError
from lockstep.world.environment import read_environment


@dataclass(frozen=True, slots=True)
class Place:
    """A rank among ranks, and who says so."""

    rank: int
    world_size: int
    source: str

    def __str__(self) -> str:
        return f"{self.source}: rank {self.rank} of {self.world_size}"


def is_open() -> bool:
    """Whether the script has opened torch.distributed's process group."""
    return dist.is_available() and dist.is_initialized()


def find_place(rank: int | None, world_size: int | None) -> Place:
    """The place that the script gives, that of the open process group, or that of the launcher, in this order; else the only
    one.

    Raises:
        ConfigError: one of the two arguments is missing or out of range, or two of these sources disagree.
    """
    found, *others = [*_places(rank, world_size)] or [Place(0, 1, "no launcher and no process group")]
    for other in others:
        _check_equal(found, other)
    return found


def check_place(place: Place) -> None:
    """Check a place that was found earlier against a process group that was opened since.

    Raises:
        ConfigError: they disagree.
    """
    if is_open():
        _check_equal(place, _of_group())


def _check_equal(one: Place, other: Place) -> None:
    if (one.rank, one.world_size) != (other.rank, other.world_size):
        raise ConfigError(
            f"resumable(): {one}; {other}. With the wrong place this process would read samples of other ranks, and leave its "
            "own out. Open the process group before resumable(), or pass the same rank= and world_size= everywhere."
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
    """Compares over the open process group what must be the same on every rank. Without a group, nothing is compared.

    Messages go over Gloo, in a group of their own where the script's group has only GPUs: a script may not have chosen its
    GPU yet.
    """

    def __init__(self) -> None:
        self._group: Any = None

    def check(self, found: dict[str, tuple[str, str]]) -> None:
        """Collective: every rank calls it. Blocks until all have, or the group's timeout.

        Args:
            found: by name, what this rank has, and what to do if others have something else.

        Raises:
            MismatchError: on every rank, if two ranks have other values.
        """
        if self._group is None and "gloo" not in str(dist.get_backend_config()):
            self._group = dist.new_group(backend="gloo")
        all_found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_found, {name: value for name, (value, _) in found.items()}, group=self._group)
        for name, (_, remedy) in found.items():
            for rank, other in enumerate(all_found):
                if other[name] != all_found[0][name]:
                    raise MismatchError(
                        f"the loaders of the ranks differ: {name} is {all_found[0][name]} on rank 0, and {other[name]} on rank "
                        f"{rank}. Each rank takes its part of its own global batches, so some samples would be used twice and "
                        f"others never. {remedy}"
                    )
