"""The digest journal of a run: what every shard had and lost, and every so many steps what the step did to the state.

``<run directory>/digests/rank-<r>.jsonl`` is appended to by every rank, without a word to the others. Each line is one JSON
object with ``event`` (its kind), ``time_s`` and the fields of the kind:

===============  =======================================================================================================
``start``        a launch begins: ``launch`` (its token, the same on every rank), ``rank``, ``world_size``, ``after`` (the step
                 after which the run goes on), ``every``, ``shards`` (V), ``exact`` (whether bits are promised)
``steps``        ``shards``: a text with semicolons between the micro-steps of this rank since the line before, each ``<step>
                 <phase> <shard> <part> <samples> <content> <losses>``: the digest of the samples' identities, that of what they
                 hold (only in the steps below; else ``-``), and the losses with commas between them. On rank 0, if ``last`` is
                 a step of which more is written (see ``is_due``): ``gradients``, for each phase the digest of all gradients
                 after the exchange and their norm, and ``state``, a digest of each object of the run (``model``,
                 ``optimizer``, ...) after the step
===============  =======================================================================================================

Where the run's strategy promises bits, all of it is the same for every number of processes. Numbers are written as in a trace:
``float.hex()``. A reader must pass over kinds and fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.errors import UsageError
from lockstep.measure.events import read_events
from lockstep.trace.traced_run import ShardKey

DIRECTORY = "digests"
NOTHING = "-"

Line = Mapping[str, Any]


class Shard(NamedTuple):
    """One micro-step."""

    samples: str
    """The digest of the samples' identities."""
    content: str
    """That of what they hold; ``NOTHING``: not computed."""
    losses: tuple[str, ...]


class PhaseGradient(NamedTuple):
    """The gradient of a phase, after the exchange."""

    digest: str
    norm: str


@dataclass(kw_only=True)
class Digests:
    """The digest journal of a run, as if nobody had interrupted it."""

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
        """The steps of which anything is known, in order."""
        return sorted({*(key.step for key in self.shards), *self.states})

    def of_step(self, step: int) -> dict[ShardKey, Shard]:
        """The micro-steps of a step, in order."""
        return {key: self.shards[key] for key in sorted(self.shards) if key.step == step}

    def go_back(self, step: int) -> None:
        """Forget later steps: a launch goes on after this one."""
        self.shards = {key: shard for key, shard in self.shards.items() if key.step <= step}
        self.gradients = {number: value for number, value in self.gradients.items() if number <= step}
        self.states = {number: value for number, value in self.states.items() if number <= step}

    def add(self, line: Line) -> None:
        """Take in a line of a rank."""
        for text in filter(None, line["shards"].split(";")):
            key, shard = _parse(text)
            self.shards[key] = shard
        if "state" in line:
            self.states[line["last"]] = dict(line["state"])
        if line.get("gradients"):
            self.gradients[line["last"]] = tuple(PhaseGradient(*pair) for pair in line["gradients"])


def is_due(step: int, every: int) -> bool:
    """Whether a line is written after a step, and gradients and state are digested: after every so many steps, and before that
    after steps 1, 2, 4, 8, ..., so that a short run has some too."""
    return every > 0 and (step % every == 0 or (step < every and step & (step - 1) == 0))


def row(key: ShardKey, shard: Shard) -> str:
    """The text of a micro-step."""
    step, phase, number, part = key
    return f"{step} {phase} {number} {part} {shard.samples} {shard.content} {','.join(shard.losses) or NOTHING}"


def _parse(text: str) -> tuple[ShardKey, Shard]:
    *numbers, samples, content, losses = text.split(" ")
    return ShardKey(*map(int, numbers)), Shard(samples, content, () if losses == NOTHING else tuple(losses.split(",")))


def file_of(rank: int) -> str:
    """A rank's file, within the run directory."""
    return f"{DIRECTORY}/rank-{rank}.jsonl"


def read_digests(run_dir: Path) -> Digests:
    """The digest journal of a run.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    try:
        ranks = [list(read_events(run_dir, name=f"{DIRECTORY}/{path.name}")) for path in _files(run_dir)]
        digests = gather(ranks)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the digest journal of {run_dir} cannot be read ({error!r}): is it of another version?") from error
    if not ranks or not digests.shards:
        raise UsageError(
            f"{run_dir} has no digest journal ({DIRECTORY}/): it took no step, or was trained with --journal-every 0 or an "
            "older lockstep"
        )
    return digests


def _files(run_dir: Path) -> Iterator[Path]:
    rank = 0
    while (path := run_dir / file_of(rank)).is_file():  # rank 0 is in every launch, rank 1 in all with several, ...
        yield path
        rank += 1


def gather(ranks: Sequence[Iterable[Line]]) -> Digests:
    """The lines of all ranks, rank 0 first, as one journal. Pure."""
    launches: dict[str, list[Line]] = {}
    starts: list[Line] = []
    for rank, lines in enumerate(ranks):
        launch = ""
        for line in lines:
            if line["event"] == "start":
                launch = line["launch"]
                starts += [line] if rank == 0 else []
            elif line["event"] == "steps":
                launches.setdefault(launch, []).append(line)
    digests = Digests()
    for start in starts:
        digests.go_back(start["after"])
        digests.every, digests.num_shards, digests.exact = start["every"], start["shards"], start["exact"]
        for line in launches.get(start["launch"], ()):
            digests.add(line)
    return digests
