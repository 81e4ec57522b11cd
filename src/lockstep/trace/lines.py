"""A run's trace: what every step computed, as digests, so that two runs can be compared to the bit.

``<run directory>/trace/rank-<r>.jsonl`` is written by every rank of a run with ``trace="steps"`` or more. Each line is one
JSON object with ``event`` (its kind) and the fields of the kind:

===============  =======================================================================================================
``start``        ``rank``, ``world_size``, ``shards``, ``seed``, ``threads``, ``strategy``, ``precision``, ``device``,
                 ``launcher``, ``level``
``loader``       ``loader`` (its number), ``length`` of its data set (null if unknown), ``replacement`` (whether its
                 sampler says that it draws with replacement; null if it does not say)
``initial``      ``weights``, ``buffers``, ``state``: before the first step, as in ``step``
``shard``        one micro-step: ``epoch``, ``pass``, ``step``, ``phase``, ``part``, ``shard``; ``batches`` (one for each
                 loader that went along: ``samples``, their identities, and ``content``, the digest of the batch); ``losses``
                 (numbers) and ``weights`` (numbers, null: by sample count) of its backward calls; ``threads``;
                 ``gradients`` (digests by parameter, of this shard alone, in the order in which they were computed); with
                 ``trace="calls"`` also ``layers``: [name, class, digest of inputs, digest of output] in the order in which
                 their forward passes ended
``step``         ``epoch``, ``pass``, ``step``, ``num_samples`` (of its global batches); ``gradients`` (one dictionary for
                 each phase: digests by parameter of ``.grad`` when the phase has ended) and ``norms`` (numbers, one a phase,
                 of all gradients together); ``weights``, ``buffers``, ``state`` (of optimizers, schedules and averages):
                 digests by name, after the step; in ``state`` a plain number stands as it is, after ``=``
``gradient``     with ``trace="gradient"``, of the first phase: ``values`` (evenly spaced numbers of the gradients, by
                 parameter), ``rows`` (digests of the samples, sorted), ``draws`` (whether a stream was drawn from inside a
                 shard)
``evaluation``   ``epoch``, ``step``, ``values``: numbers by name
``end``          ``step``: the script came to its end, or to ``trace_until``
===============  =======================================================================================================

(With ``trace="calls"`` or ``"kernels"`` there is evidence beside it: see ``diagnosis.evidence``.)

Numbers are written as ``float.hex()``, so that nothing is rounded. ``epoch``, ``pass`` and ``phase`` count from 0,
``step`` from 1. A reader must pass over kinds and fields that it does not know.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DIRECTORY = "trace"


class TraceWriter:
    """Appends lines to one file of a run's trace. They reach the file as they are written.

    Args:
        run_dir: the run's directory.
        name: of the file, without its ending: ``rank-0``, say.
    """

    def __init__(self, run_dir: Path, name: str) -> None:
        directory = run_dir / DIRECTORY
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / f"{name}.jsonl").open("w", encoding="utf-8", buffering=1)

    def write(self, **fields: Any) -> None:
        """Append one line."""
        self._file.write(json.dumps(fields) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of one file. One cut short is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(ValueError):  # a process was ended in the middle of a line
                yield json.loads(line)


def read_trace(run_dir: Path) -> list[list[dict[str, Any]]]:
    """The lines of every rank, in rank order. A line cut short is left out.

    Raises:
        FileNotFoundError: the directory holds no trace.
    """
    ranks: list[list[dict[str, Any]]] = []
    while (path := run_dir / DIRECTORY / f"rank-{len(ranks)}.jsonl").is_file():
        ranks.append(list(read_lines(path)))
    if not ranks:
        raise FileNotFoundError(f"{run_dir} holds no trace")
    return ranks


def read_evidence(run_dir: Path) -> list[dict[str, Any]]:
    """What all processes of a run saw, those of rank 0 first: see ``diagnosis.evidence``."""
    files = sorted((run_dir / DIRECTORY).glob("evidence-*.jsonl"))
    return [line for file in files for line in read_lines(file)]


def exact(number: float) -> str:
    """A number as it stands in a trace."""
    return float(number).hex()


def number(text: str) -> float:
    """The number that ``exact`` wrote."""
    return float.fromhex(text)


def combined(digests: Mapping[str, str]) -> str:
    """One digest for many, by name: 32 hexadecimal digits. Their order does not matter."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(digests):
        hasher.update(f"{name}={digests[name]};".encode())
    return hasher.hexdigest()
