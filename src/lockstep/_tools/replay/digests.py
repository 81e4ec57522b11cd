"""The digest journal of a run: digests of every shard's samples and its losses, and at intervals
digests of the state.

Each rank appends to ``<run directory>/digests/rank-<r>.jsonl``, without communication. Each line is
one JSON object with ``event`` (its kind) and the fields of the kind:

===============  =======================================================================================================
``start``        a launch begins: ``launch`` (its token, the same on every rank), ``rank``, ``world_size``, ``after`` (the step
                 after which the run resumes), ``every``, ``shards`` (V), ``exact`` (whether results
                 are bit-exact)
``steps``        ``shards``: a text, with the micro-batches of this rank since the last line separated by semicolons, each
                 ``<step> <phase> <shard> <part> <samples> <content> <losses>``: the digest of the
                 samples' identities, the digest of their content (``-`` except in the steps below),
                 and the losses separated by commas. On rank 0, if ``last`` is a step with more (see
                 ``journal.is_due``): ``gradients``, for each phase the digest of all gradients
                 after the exchange and their norm; and ``state``, a digest of each object of the
                 run (``model``, ``optimizer``, ...) after the step
===============  =======================================================================================================

If the run is bit-exact, all of this is the same for every number of processes. Numbers are written
as in a trace, by ``float.hex()``. A reader must ignore kinds and fields that it does not know.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from lockstep._base.errors import UsageError
from lockstep._base.shapes import Count, fits
from lockstep._events.history import counts_until
from lockstep._tools.verify.trace.lines import read_ranks
from lockstep._tools.verify.trace.traced_run import ShardKey

DIRECTORY = "digests"
NOTHING = "-"
_ROW = re.compile(r"((\d{1,15}) \d{1,15} \d{1,15} \d{1,15}) \S+ \S+ \S+")

Line = Mapping[str, Any]


class _Start(TypedDict):
    launch: str
    after: Count
    every: Count


class _Steps(TypedDict):
    shards: str


class _StepsMore(_Steps, total=False):
    last: Count
    gradients: list[tuple[str, str]]
    state: dict[str, str]


_LINES: Mapping[str, Any] = {"start": _Start, "steps": _StepsMore}


@dataclass(kw_only=True)
class Digests:
    """The digest journal of a run, as if it had never been interrupted: a ``Record`` of its
    steps."""

    every: int = 0
    rows: dict[int, dict[str, str]] = field(default_factory=dict)
    """The texts of each step's micro-batches, by their first four fields. (There may be millions,
    of which few are read.)"""
    steps: dict[int, tuple[Line, ...]] = field(default_factory=dict)
    """The lines about gradients and state, in the form of a trace's lines ``step``: a single digest
    of all gradients of a phase, named "", and a digest of each object of the run."""
    evaluations: tuple[Line, ...] = ()

    def numbers(self) -> list[int]:
        """All steps with an entry, in order."""
        return sorted({*self.rows, *self.steps})

    def shards_of(self, step: int) -> list[tuple[ShardKey, tuple[tuple[int, Line], ...]]]:
        """The micro-batches of a step, in order, in the form of a trace's lines ``shard``: the
        samples as a single digest, and no gradients."""
        return sorted((key, ((0, line),)) for key, line in map(_parse, self.rows.get(step, {}).values()))

    def add(self, line: Line, until: float) -> None:
        """Add a line of a rank, up to the last step of its launch that counts."""
        for text in filter(None, line["shards"].split(";")):
            if (match := _ROW.fullmatch(text)) is None:
                raise ValueError(f"the record of a micro-batch is damaged: {reprlib.repr(text)}")
            if (step := int(match[2])) <= until:
                self.rows.setdefault(step, {})[match[1]] = text
        step = line.get("last", 0)
        if "state" in line and step <= until:
            gradients = line.get("gradients", ())
            self.steps[step] = (
                {
                    "step": step,
                    "gradients": [{"": digest} for digest, _ in gradients],
                    "norms": [norm for _, norm in gradients],
                    "weights": {},
                    "buffers": {},
                    "state": line["state"],
                },
            )


def row(key: ShardKey, samples: str, content: str, losses: Sequence[str]) -> str:
    """The text for a micro-batch; ``content``: ``NOTHING`` if it was not computed."""
    step, phase, number, part = key
    return f"{step} {phase} {number} {part} {samples} {content} {','.join(losses) or NOTHING}"


def _parse(text: str) -> tuple[ShardKey, Line]:
    *numbers, samples, content, losses = text.split(" ")
    batch = {"samples": samples, "content": None if content == NOTHING else content}
    several = [] if losses == NOTHING else losses.split(",")
    return ShardKey(*map(int, numbers)), {"batches": [batch], "losses": several, "weights": (), "gradients": {}}


def read_digests(run_dir: Path) -> Digests:
    """The digest journal of a run.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    try:
        ranks = read_ranks(run_dir, DIRECTORY)
        digests = gather(ranks)
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(
            f"cannot read the digest journal of {run_dir} ({error!r}). It may be from another version of lockstep.",
            code="journal-unreadable",
        ) from error
    if not ranks or not digests.rows:
        raise UsageError(
            f"{run_dir} has no digest journal ({DIRECTORY}/). Either it took no step, or it was trained with --journal-every "
            "0 or an older lockstep.",
            code="no-journal",
        )
    return digests


def gather(ranks: Sequence[Iterable[Line]]) -> Digests:
    """Merge the lines of all ranks, rank 0 first. Pure.

    Raises:
        ValueError: a line has not the fields in the table above.
    """
    launches: dict[str, list[Line]] = {}
    starts: list[Line] = []
    for rank, lines in enumerate(ranks):
        launch = ""
        for line in lines:
            if not fits(line, _LINES.get(line["event"], Any)):
                raise ValueError(f"a line of rank {rank} is damaged: {reprlib.repr(dict(line))}")
            if line["event"] == "start":
                launch = line["launch"]
                starts += [line] if rank == 0 else []
            elif line["event"] == "steps":
                launches.setdefault(launch, []).append(line)
    digests = Digests()
    # Steps after a launch's last checkpoint were taken again by the next launch: of each launch
    # only the steps up to where the next one resumed count.
    for start, until in zip(starts, counts_until([start["after"] for start in starts]), strict=True):
        digests.every = start["every"]
        for line in launches.get(start["launch"], ()):
            digests.add(line, until)
    return digests
