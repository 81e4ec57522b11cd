"""The digest journal of a run: digests of every shard's samples and its losses, and at intervals digests of the state.

Each rank appends to ``<run directory>/digests/rank-<r>.jsonl``, without communication. Each line is one JSON object with
``event`` (its kind), ``time_s`` and the fields of the kind:

===============  =======================================================================================================
``start``        a launch begins: ``launch`` (its token, the same on every rank), ``rank``, ``world_size``, ``after`` (the step
                 after which the run resumes), ``every``, ``shards`` (V), ``exact`` (whether results are bit-exact)
``steps``        ``shards``: a text, with the micro-steps of this rank since the last line separated by semicolons, each
                 ``<step> <phase> <shard> <part> <samples> <content> <losses>``: the digest of the samples' identities, that of
                 their content (in the steps below only, else ``-``), and the losses separated by commas. On rank 0, if ``last``
                 is a step with more (see ``is_due``): ``gradients``, for each phase the digest of all gradients after the
                 exchange and their norm; and ``state``, a digest of each object of the run (``model``, ``optimizer``, ...)
                 after the step
===============  =======================================================================================================

If the run is bit-exact, all of this is the same for every number of processes. Numbers are written as in a trace, by
``float.hex()``. A reader must ignore kinds and fields that it does not know.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from lockstep.base.errors import UsageError
from lockstep.base.regular import MOST_BYTES
from lockstep.base.shapes import Count, fits
from lockstep.journal.history import counts_until, read_events
from lockstep.journal.ranks import files
from lockstep.tools.verify.trace.traced_run import ShardKey

DIRECTORY = "digests"
NOTHING = "-"
_MOST_BYTES = 16 * MOST_BYTES

Line = Mapping[str, Any]


class _Start(TypedDict):
    launch: str
    after: Count
    every: Count
    shards: Count
    exact: bool


class _Steps(TypedDict):
    shards: str


class _StepsMore(_Steps, total=False):
    last: Count
    gradients: list[tuple[str, str]]
    state: dict[str, str]


_LINES: Mapping[str, Any] = {"start": _Start, "steps": _StepsMore}


class Shard(NamedTuple):
    """One micro-step."""

    samples: str
    """The digest of the samples' identities."""
    content: str
    """That of what they hold; ``NOTHING``: not computed."""
    losses: tuple[str, ...]

    def as_line(self) -> Line:
        """As a trace's line ``shard`` has it, for the comparison: the samples as one digest, and no weights or gradients."""
        content = None if self.content == NOTHING else self.content
        batches = [{"samples": self.samples, "content": content}]
        return {"batches": batches, "losses": self.losses, "weights": (), "gradients": {}}


class PhaseGradient(NamedTuple):
    """The gradient of a phase, after the exchange."""

    digest: str
    norm: str


@dataclass(kw_only=True)
class Digests:
    """The digest journal of a run, as if it had never been interrupted."""

    every: int = 0
    num_shards: int = 0
    exact: bool = False
    shards: dict[ShardKey, Shard] = field(default_factory=dict)
    gradients: dict[int, tuple[PhaseGradient, ...]] = field(default_factory=dict)
    """By step."""
    states: dict[int, dict[str, str]] = field(default_factory=dict)
    """By step, the digest of each object after it."""

    @property
    def steps(self) -> list[int]:
        """All steps with an entry, in order."""
        return sorted({*(key.step for key in self.shards), *self.states})

    def shards_by_step(self) -> dict[int, dict[ShardKey, Shard]]:
        """The micro-steps of each step, in order."""
        by_step: dict[int, dict[ShardKey, Shard]] = {}
        for key, shard in sorted(self.shards.items()):
            by_step.setdefault(key.step, {})[key] = shard
        return by_step

    def line_of(self, step: int, names: Iterable[str]) -> Line:
        """A step as a trace's line ``step`` has it, for the comparison: with one digest of all gradients of a phase, and one of
        each object in ``names``."""
        gradients = self.gradients.get(step, ())
        return {
            "step": step,
            "gradients": [{None: gradient.digest} for gradient in gradients],
            "norms": [gradient.norm for gradient in gradients],
            "weights": {},
            "buffers": {},
            "state": {name: self.states[step][name] for name in names},
        }

    def add(self, line: Line, until: float) -> None:
        """Add a line of a rank, up to the last step of its launch that counts."""
        for text in filter(None, line["shards"].split(";")):
            key, shard = _parse(text)
            if key.step <= until:
                self.shards[key] = shard
        if line.get("last", 0) > until:
            return
        if "state" in line:
            self.states[line["last"]] = dict(line["state"])
        if line.get("gradients"):
            self.gradients[line["last"]] = tuple(PhaseGradient(*pair) for pair in line["gradients"])


def is_due(step: int, every: int) -> bool:
    """Whether a line is written after a step, with gradients and state: every ``every`` steps, and before the first of these
    after steps 1, 2, 4, 8, ..., so that short runs have some, too."""
    return every > 0 and (step % every == 0 or (step < every and step & (step - 1) == 0))


def row(key: ShardKey, shard: Shard) -> str:
    """The text for a micro-step."""
    step, phase, number, part = key
    return f"{step} {phase} {number} {part} {shard.samples} {shard.content} {','.join(shard.losses) or NOTHING}"


def _parse(text: str) -> tuple[ShardKey, Shard]:
    *numbers, samples, content, losses = text.split(" ")
    return ShardKey(*map(int, numbers)), Shard(samples, content, () if losses == NOTHING else tuple(losses.split(",")))


def read_digests(run_dir: Path) -> Digests:
    """The digest journal of a run.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    try:
        names = files(run_dir, DIRECTORY)
        ranks = [list(read_events(run_dir, name=name, most_bytes=_MOST_BYTES)) for name in names]
        digests = gather(ranks)
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(
            f"the digest journal of {run_dir} cannot be read ({error!r}): was it written by another version?"
        ) from error
    if not ranks or not digests.shards:
        raise UsageError(
            f"{run_dir} has no digest journal ({DIRECTORY}/): it took no step, or was trained with --journal-every 0 or by an "
            "older lockstep"
        )
    return digests


def gather(ranks: Sequence[Iterable[Line]]) -> Digests:
    """Merge the lines of all ranks, rank 0 first. Pure.

    Raises:
        ValueError: a line has not the fields in the table above.
        KeyError: a micro-step was damaged.
    """
    launches: dict[str, list[Line]] = {}
    starts: list[Line] = []
    for rank, lines in enumerate(ranks):
        launch = ""
        for line in lines:
            if not fits(line, _LINES.get(line["event"], Any)):
                raise ValueError(f"a line of rank {rank} was damaged: {reprlib.repr(dict(line))}")
            if line["event"] == "start":
                launch = line["launch"]
                starts += [line] if rank == 0 else []
            elif line["event"] == "steps":
                launches.setdefault(launch, []).append(line)
    digests = Digests()
    for start, until in zip(starts, counts_until([start["after"] for start in starts]), strict=True):
        digests.every, digests.num_shards, digests.exact = start["every"], start["shards"], start["exact"]
        for line in launches.get(start["launch"], ()):
            digests.add(line, until)
    return digests
