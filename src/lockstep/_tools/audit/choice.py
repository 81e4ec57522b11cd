"""Who audits which shard of a step. Pure: a function of the seed, the step and the number of
processes."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep._base.config import STRATEGIES
from lockstep._base.errors import ConfigError
from lockstep._data.streams import derive
from lockstep._plan.blocks import Blocks

_SALT = 0xA0D17


def check_strategy(strategy: str) -> None:
    """Check that a run with this strategy can be audited.

    Raises:
        ConfigError: with this strategy, a process cannot recompute another's shard by itself.
    """
    if not STRATEGIES[strategy].audits:
        suitable = ", ".join(name for name, candidate in STRATEGIES.items() if candidate.audits)
        raise ConfigError(
            f"audit is not supported by strategy={strategy!r}: its backward pass sends gradients to all processes, so a "
            f"process cannot recompute a shard by itself. Remove audit, or use one of: {suitable}.",
            code="audit-unsupported",
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The shard of an audited step, and the ranks that compute it."""

    shard: int
    owner: int
    """The rank whose shard it is."""
    auditor: int
    """The rank that recomputes it: a different one, unless there is only one process."""
    judges: tuple[int, ...]
    """The ranks that compute it once more if the two differ: both of them, and a third if there is
    one."""


def choose(*, seed: int, step: int, every: int, num_filled: int, blocks: Blocks) -> Choice:
    """The shard of an audited step.

    Ranks take turns in pairs, in an order given by the seed: any W / 2 consecutive audits (rounded
    up) cover all W ranks.

    Args:
        seed: of the run.
        step: the audited step, a multiple of ``every``.
        every: steps between audits.
        num_filled: how many shards have samples in this step; they are the first ones.
        blocks: the shards of all ranks in this step.
    """
    world_size = blocks.world_size
    turn, draw = step // every % -(-world_size // 2), derive(seed, _SALT, step)
    ranks = sorted(range(world_size), key=lambda rank: derive(seed, _SALT, rank, rank))
    first, second = ranks[2 * turn], ranks[(2 * turn + 1) % world_size]
    if draw >> 32 & 1:
        first, second = second, first
    filled = {rank: [s for s in blocks.by_rank[rank] if s < num_filled] for rank in (first, second)}
    owner, auditor = (first, second) if filled[first] else (second, first)
    if filled[owner]:
        shard = filled[owner][draw % len(filled[owner])]
    else:  # a step with few samples: neither rank has any
        shard = draw % num_filled
        owner = blocks.owner(shard)
    uninvolved = [rank for rank in ranks if rank not in (owner, auditor)]
    third = {uninvolved[draw % len(uninvolved)]} if uninvolved else set()
    return Choice(shard=shard, owner=owner, auditor=auditor, judges=tuple(sorted({owner, auditor} | third)))
