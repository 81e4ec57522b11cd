"""The traces of all ranks of a run, as one. Pure, except for reading files."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lockstep._base.errors import UsageError
from lockstep._tools.verify.trace.lines import DIRECTORY, read_ranks

Line = Mapping[str, Any]


class ShardKey(NamedTuple):
    """The position of one micro-batch. (A step belongs to one pass, and a pass to one epoch.)"""

    step: int
    phase: int
    shard: int
    part: int

    @property
    def name(self) -> str:
        """The shard and its phase in the step, for the user."""
        return f"shard {self.shard}" + (f", phase {self.phase + 1}" if self.phase else "")


@dataclass(frozen=True, kw_only=True)
class TracedRun:
    """The trace of one run."""

    start: Line
    loaders: tuple[Line, ...]
    initial: tuple[Line, ...]
    """The line about the state before the first step, of each rank, with its ``rank``."""
    shards: Mapping[ShardKey, tuple[tuple[int, Line], ...]]
    """The ranks that ran each micro-batch, with their lines: one rank, unless something is
    wrong."""
    steps: Mapping[int, tuple[Line, ...]]
    """The lines of all ranks about each step, with their ``rank``: in a run that failed, some ranks
    may not have finished the last step."""
    evaluations: tuple[Line, ...]
    """Rank 0's lines about evaluations."""
    first_gradient: Line | None
    """Rank 0's first gradient, as numbers; None unless it was traced."""
    layers: Line
    """Rank 0's line about layers; empty: not in the trace."""
    end: Line | None
    """Rank 0's line about the state in which the script finished; None: it did not, or failed."""
    is_complete: bool
    """Whether every rank has reached the end."""

    @property
    def num_steps(self) -> int:
        """The number of steps taken."""
        return len(self.steps)

    @property
    def samples_by_rank(self) -> tuple[int, ...]:
        """The number of samples that each rank trained on."""
        counts = Counter(dict.fromkeys(range(self.start["world_size"]), 0))
        for key, owners in self.shards.items():
            for rank, line in owners if key.phase == 0 else ():
                counts[rank] += len(line["batches"][0]["samples"]) if key.step in self.steps and line["batches"] else 0
        return tuple(counts[rank] for rank in sorted(counts))

    @property
    def passes(self) -> tuple[range, ...]:
        """The steps of each pass over a loader: an epoch usually has one."""
        steps: dict[int, list[int]] = {}
        for step, lines in self.steps.items():
            steps.setdefault(lines[0]["pass"], []).append(step)
        return tuple(range(min(taken), max(taken) + 1) for taken in steps.values())

    @property
    def last(self) -> Line:
        """The line of the last step of the first rank that has finished it."""
        return self.steps[max(self.steps)][0]

    @property
    def last_of_all(self) -> int:
        """The last step that all ranks have finished; 0: none. Of a later one, lines of ranks that
        were ended may be missing."""
        world_size = self.start["world_size"]
        return max((step for step, lines in self.steps.items() if len(lines) == world_size), default=0)

    def numbers(self) -> Collection[int]:
        """The numbers of these steps."""
        return self.steps

    def shards_of(self, step: int) -> list[tuple[ShardKey, tuple[tuple[int, Line], ...]]]:
        """The micro-batches of a step, in order, with their owners."""
        return self._by_step.get(step, [])

    @functools.cached_property
    def _by_step(self) -> dict[int, list[tuple[ShardKey, tuple[tuple[int, Line], ...]]]]:
        steps: dict[int, list[tuple[ShardKey, tuple[tuple[int, Line], ...]]]] = {}
        for key, owners in sorted(self.shards.items()):
            steps.setdefault(key.step, []).append((key, owners))
        return steps


def gather(ranks: Sequence[Iterable[Line]]) -> TracedRun:
    """Merge the lines of all ranks.

    Raises:
        UsageError: no step was taken.
    """
    shards: dict[ShardKey, list[tuple[int, Line]]] = {}
    steps: dict[int, list[Line]] = {}
    others: dict[str, list[tuple[int, Line]]] = {}
    for rank, lines in enumerate(ranks):
        for line in lines:
            event = line["event"]
            if event == "shard":
                key = ShardKey(line["step"], line["phase"], line["shard"], line["part"])
                shards.setdefault(key, []).append((rank, line))
            elif event == "step":
                steps.setdefault(line["step"], []).append({**line, "rank": rank})
            else:
                others.setdefault(event, []).append((rank, line))

    def of_rank_0(event: str) -> tuple[Line, ...]:
        return tuple(line for rank, line in others.get(event, ()) if rank == 0)

    start: Line = next(iter(of_rank_0("start")), {})
    if not start:
        raise UsageError(
            "the trace has no start line. It may be from another version of lockstep.", code="verify-foreign-trace"
        )
    if not steps:
        raise UsageError(
            "the script called lockstep.join() but took no step, so there is nothing to verify. Prepare a model and a loader, "
            "and iterate the prepared loader.",
            code="verify-no-step",
        )
    return TracedRun(
        start=start,
        loaders=of_rank_0("loader"),
        initial=tuple({**line, "rank": rank} for rank, line in others.get("initial", ())),
        shards={key: tuple(owners) for key, owners in shards.items()},
        steps={step: tuple(lines) for step, lines in sorted(steps.items())},
        evaluations=of_rank_0("evaluation"),
        first_gradient=next(iter(of_rank_0("gradient")), None),
        layers=next(iter(of_rank_0("layers")), {}),
        end=next(iter(of_rank_0("end")), None),
        is_complete=len(others.get("end", ())) == start["world_size"] == len(ranks),
    )


def read_run(run_dir: Path) -> TracedRun:
    """The trace in a run's directory.

    Raises:
        UsageError: there is none, or it cannot be read, or no step was taken.
    """
    try:
        ranks = read_ranks(run_dir, DIRECTORY)
        if not ranks:
            raise UsageError(
                "the script does not call lockstep.join(), so there is nothing to verify. `lockstep new` writes a script that "
                "does.",
                code="verify-no-join",
            )
        return gather(ranks)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"cannot read the run's trace ({error!r}). It may be from another version of lockstep.",
            code="verify-foreign-trace",
        ) from error
