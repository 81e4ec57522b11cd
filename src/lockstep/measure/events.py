"""The run's journal: JSON lines, the one seam between running and reading.

``<run directory>/events.jsonl`` is written by rank 0. Each line is one JSON object with ``event`` (its kind), ``time_s``
(seconds since 1970) and the fields of the kind:

=============  =========================================================================================================
``start``      ``script``, ``launcher``, ``world_size``, ``num_nodes``, ``hosts``, ``strategy``, ``precision``,
               ``shards``, ``accumulate``, ``seed``, ``threads``, ``device``, ``device_name``, ``backend``,
               ``num_cores`` (all that this machine lets the run use), ``torch``, ``python``, ``lockstep`` (versions)
``step``       ``epoch``, ``step``, ``values``: what ``team.log`` was given in that step, averaged over all shards
``epoch``      ``epoch``, ``num_steps``, ``num_samples`` and ``wall_s`` of one pass over a training loader; the same
               without warm-up as ``steady_steps``, ``steady_samples``, ``steady_s``; ``cpu_s`` (a list, by rank: CPU
               seconds of the process and its loader workers over ``steady_s``), ``peak_rss_bytes`` and
               ``peak_gpu_bytes`` (lists, by rank; the latter null without a card), ``gpu_utilisation`` (a list, by
               rank: per cent over the pass, null where it cannot be read)
``evaluate``   ``epoch``, ``step``, ``values``: the results of one evaluation
``end``        ``step``, ``wall_s`` since ``start``: the script came to its end
=============  =========================================================================================================

``epoch`` counts from 0, ``step`` from 1 (the number of steps taken so far in the run, this one included).
A reader must pass over kinds and fields that it does not know. A number that is not finite is written as null.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

FILE_NAME = "events.jsonl"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it, and most readers refuse Python's
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


class EventWriter:
    """Appends events to the journal of a run directory. Lines reach the file as they are written."""

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / FILE_NAME
        cut_short = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)
        if cut_short:  # an earlier launch was killed in the middle of a line
            self._file.write("\n")

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        self._file.write(json.dumps({"event": event, "time_s": time.time(), **_finite(fields)}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_events(run_dir: Path) -> Iterator[dict[str, Any]]:
    """The events of a run, in order. A line cut short (a launch was killed while it wrote) is left out.

    Raises:
        FileNotFoundError: the directory holds no journal.
    """
    with (run_dir / FILE_NAME).open(encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                yield json.loads(line)
