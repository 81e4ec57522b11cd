"""A run's trace: digests of what every step computed, so that two runs can be compared bit by bit.

With ``trace="steps"`` or more, every rank writes ``<run directory>/trace/rank-<r>.jsonl``. Each
line is one JSON object with ``event`` (its kind) and the fields of the kind:

===============  =======================================================================================================
``start``        ``rank``, ``world_size``, ``shards``, ``seed``, ``threads``, ``strategy``, ``precision``, ``device``,
                 ``launcher``, ``level``; ``chosen`` (settings that the script leaves to a trial),
                 ``checkpoint_every``
``loader``       ``loader`` (its number), ``length`` of its dataset (null if unknown), ``replacement`` (whether its
                 sampler draws with replacement; null if unknown)
``initial``      ``weights``, ``buffers``, ``state``: before the first step, as in ``step``
``shard``        one micro-batch: ``epoch``, ``pass``, ``step``, ``phase``, ``part``, ``shard``; ``batches`` (one for each
                 loader: ``samples``, their identities, and ``content``, the digest of the batch);
                     ``losses`` (numbers) and
                 ``weights`` (numbers, null: by sample count) of its backward calls;
                 ``gradients`` (digests by parameter, of this shard alone, in the order in which
                 they were computed)
``step``         ``epoch``, ``pass``, ``step``, ``num_samples`` (of its global batches); ``gradients`` (one dictionary for
                 each phase: digests by parameter of ``.grad`` at the end of the phase) and
                 ``norms`` (numbers, one a phase, of all gradients together); ``weights``,
                 ``buffers``, ``state`` (of optimizers, schedules, averages and what is registered):
                 digests by name, after the step; a number in ``state`` is written in full, after
                 ``=``
``gradient``     with ``trace="gradient"``, of the first phase: ``values`` (evenly spaced numbers of the gradients, by
                 parameter), ``rows`` (digests of the samples, sorted), ``draws`` (whether a shard
                 drew from a random stream)
``evaluation``   ``epoch``, ``step``, ``values``: numbers by name
``layers``       before the first backward pass: ``batch_norm``, ``sync_batch_norm`` and ``dropout``, the names of such layers
                 in training mode
``end``          ``step``: the script finished, or reached ``trace_until``; ``weights``, ``buffers``, ``state`` as in ``step``
===============  =======================================================================================================

(A replay adds fields to these: see ``replay.shown_steps``. The digest journal has the same in fewer
words: see ``replay.digests``.)

Numbers are written as ``float.hex()``, without rounding. ``epoch``, ``pass`` and ``phase`` count
from 0, ``step`` from 1. A reader must ignore kinds and fields that it does not know.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep._base import regular_files
from lockstep._base.nofollow import make_directory
from lockstep._events.format import read_object
from lockstep._events.writer import LineWriter


def file_of(directory: str, rank: int) -> str:
    """The path of a rank's file, relative to the run directory."""
    return f"{directory}/rank-{rank}.jsonl"


def files(run_dir: Path, directory: str) -> Iterator[str]:
    """The files of all ranks, in order. (Every launch has a rank 0, and all ranks below its
    highest.)"""
    rank = 0
    while (run_dir / (name := file_of(directory, rank))).is_file():
        yield name
        rank += 1


DIRECTORY = "trace"


class TraceWriter(LineWriter):
    """Writes lines to one file of a run's trace, or of its digest journal.

    Args:
        run_dir: the run's directory.
        name: of the file, without its suffix: ``rank-0``, say.
        directory: of the files of all ranks, in that one.
        is_fresh: whether what an earlier launch has written there is removed.
    """

    def __init__(self, run_dir: Path, name: str, directory: str = DIRECTORY, *, is_fresh: bool = True) -> None:
        make_directory(run_dir / directory, within=run_dir)
        super().__init__(run_dir, f"{directory}/{name}.jsonl", is_fresh=is_fresh)

    def write(self, **fields: Any) -> None:
        """Write one line."""
        self.write_line(fields)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of one file. Truncated lines are skipped."""
    return (found for line in regular_files.read_lines(path) if (found := read_object(line)) is not None)


def read_ranks(run_dir: Path, directory: str) -> list[list[dict[str, Any]]]:
    """The lines of every rank in a directory of the run's, in rank order; empty: there are none.
    Truncated lines are skipped.

    Raises:
        OSError: they cannot be read.
    """
    names = files(run_dir, directory)
    return [[line for line in read_lines(run_dir / name) if isinstance(line.get("event"), str)] for name in names]


def exact(number: float) -> str:
    """A number as a trace has it, without rounding."""
    return float(number).hex()


def number(text: str) -> float:
    """The inverse of ``exact``; NaN for a text that is none."""
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError):
        return math.nan


def combined(digests: Mapping[str, str]) -> str:
    """A single digest of many, by name, in any order: 32 hexadecimal digits."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(digests):
        hasher.update(f"{name}={digests[name]};".encode())
    return hasher.hexdigest()
