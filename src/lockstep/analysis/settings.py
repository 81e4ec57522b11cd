"""The settings under which ``lockstep verify`` runs a script: all of them must give the same answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.diagnosis.setting import Setting
from lockstep.errors import ConfigError

LAUNCHERS = ("local", "torchrun", "python")
"""``local`` is ``lockstep run``; ``python`` is the plain interpreter, which starts one process."""
DEFAULT_WORLD_SIZES = (1, 2, 4)


def default_world_sizes(*, num_cores: int, num_gpus: int) -> tuple[int, ...]:
    """1, 2 and 4; no more than twice the cores, and than the GPUs where there are several."""
    largest = num_gpus if num_gpus > 1 else 2 * num_cores
    return tuple(size for size in DEFAULT_WORLD_SIZES if size <= largest)


def expand(
    world_sizes: Sequence[int],
    workers: Sequence[int | None],
    launchers: Sequence[str] | None,
    shards: int | None,
    *,
    resumes: bool,
) -> tuple[Setting, ...]:
    """Every combination, the reference first; then a launch that is killed, and resumed at another world size.

    Args:
        launchers: None: ``local`` at every world size, and each of the others once.

    Raises:
        ConfigError: there are fewer shards than processes in one, or there is only one.
    """
    least, *_, largest = (*world_sizes, *world_sizes)
    if shards is not None and shards < largest:
        raise ConfigError(
            f"--shards {shards} with {largest} processes: a process without a shard would have nothing to do. Ask for "
            f"--shards {largest} or more, or for fewer processes with --world-sizes."
        )
    combinations = [
        (size, number, launcher)
        for launcher in launchers or ("local",)
        for number in workers
        for size in ((1,) if launcher == "python" else world_sizes)
    ]
    if launchers is None:
        combinations.append((1, workers[0], "python"))
        combinations += [(size, workers[0], "torchrun") for size in world_sizes if size > 1][:1]
    if len(combinations) + resumes < 2:
        raise ConfigError(
            "there is one setting only, and nothing to compare it with: give --world-sizes, --workers or --launchers "
            "several values"
        )
    settings = [
        Setting(number=index, world_size=size, workers=number, launcher=launcher)
        for index, (size, number, launcher) in enumerate(combinations, start=1)
    ]
    if resumes:
        last_world_size = least if least < largest else 1
        settings.append(
            Setting(number=len(settings) + 1, world_size=last_world_size, workers=workers[0], killed_at=largest),
        )
    return tuple(settings)
