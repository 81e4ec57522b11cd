"""The settings under which ``lockstep verify`` runs a script. All of them must compute
bit-identical results. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lockstep._base.config import STRATEGIES
from lockstep._base.errors import ConfigError
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.trace.traced_run import TracedRun

LAUNCHERS = ("local", "torchrun", "python")
"""``local`` is ``lockstep run``; ``python`` is the plain interpreter, which starts one process."""


def default_world_sizes(*, num_cores: int, num_gpus: int, strategy: str | None = None) -> tuple[int, ...]:
    """1, 2 and 3, or with a strategy for which each must divide V 1, 2 and 4; no more than twice
    the cores, and than the GPUs where there are several."""
    largest = num_gpus if num_gpus > 1 else 2 * num_cores
    sizes = (1, 2, 4) if STRATEGIES[strategy or "auto"].even else (1, 2, 3)
    return tuple(size for size in sizes if size <= largest)


def default_shards(world_sizes: Sequence[int]) -> int:
    """The least power of two that is enough: with 3 processes 4, so that one of them has more
    shards than the others."""
    return 1 << (max(world_sizes) - 1).bit_length()


def expand(
    world_sizes: Sequence[int],
    workers: Sequence[int | None],
    launchers: Sequence[str] | None,
    shards: int | None,
    *,
    resumes: bool,
) -> tuple[Setting, ...]:
    """Every combination, the reference first; then launches that are killed, and resumed at another
    world size: one in its first epoch, which crosses the ends of all epochs once it is resumed, and
    one in its last, where most has been carried over.

    Args:
        launchers: None: ``local`` at every world size, and each of the others once.

    Raises:
        ConfigError: there are fewer shards than processes in one, or there is only one.
    """
    least, *_, largest = (*world_sizes, *world_sizes)
    if shards is not None and shards < largest:
        raise ConfigError(
            f"--shards {shards} with {largest} processes: each process needs at least one shard. Use --shards {largest} or "
            "more, or fewer processes with --world-sizes.",
            code="verify-too-few-shards",
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
            "there is only one setting, so there is nothing to compare. Pass several values to --world-sizes, --workers or "
            "--launchers.",
            code="verify-one-setting",
        )
    settings = [
        Setting(number=index, world_size=size, workers=number, launcher=launcher)
        for index, (size, number, launcher) in enumerate(combinations, start=1)
    ]
    if resumes:
        # Both directions: from many processes to few, and from few to many. With a single world
        # size, 1 is the other one.
        last_world_size = least if least < largest else 1
        pairs = ((last_world_size, largest, False), (largest, last_world_size, True))
        settings += [
            Setting(number=number, world_size=size, workers=workers[0], killed_at=killed_at, in_last_epoch=in_last)
            for number, (size, killed_at, in_last) in enumerate(pairs, start=len(settings) + 1)
        ]
    return tuple(settings)


def within(settings: Sequence[Setting], shards: int) -> tuple[Setting, ...]:
    """The settings that this many shards allow, renumbered: no process may be without one."""
    limited = [
        dataclasses.replace(
            setting,
            world_size=min(setting.world_size, shards),
            killed_at=setting.killed_at and min(setting.killed_at, shards),
        )
        for setting in settings
        if setting.world_size <= shards or setting.killed_at is not None
    ]
    return tuple(dataclasses.replace(setting, number=number) for number, setting in enumerate(limited, start=1))


def step_to_kill_after(run: TracedRun, *, in_last_epoch: bool) -> int | str:
    """The step after which a launch saves a checkpoint, to be killed after the next: in the middle
    of its first or last epoch. If there is none: the reason, as text.

    Args:
        run: the script's run to its end. Its passes over a loader count as epochs.
        in_last_epoch: of which epoch.
    """
    if run.start.get("checkpoint_every") == "off":
        return "the script saves no checkpoints (checkpoint_every is off)"
    if run.num_steps == 1:
        return "there is only 1 step, so nothing follows a checkpoint (train for more steps)"
    if in_last_epoch and len(run.passes) == 1:
        return "there is only 1 epoch, so no resume crosses an epoch's end (train for 2)"
    steps = run.passes[-1 if in_last_epoch else 0]
    # In the middle, so that a resume has steps of the same epoch before and after it. A checkpoint
    # after the run's very last step would leave nothing to resume.
    middle = (steps[0] + steps[-1]) // 2
    return middle - 1 if middle == run.passes[-1][-1] else middle
