"""A comparison that was interrupted is resumed by the same command."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.base.errors import ConfigError
from lockstep.tools.compare.comparison import Comparison
from lockstep.tools.compare.results import read_results
from lockstep.tools.compare.schedule import turns_left
from lockstep.tools.trials.study import FILE_NAME, latest_directory

_OF_THE_MOMENT = ("date", "load")


def digest_of(script: Path | None) -> str:
    """The SHA-256 digest of a script, by which ``resumable`` recognizes it; empty: it is not a file."""
    with contextlib.suppress(OSError):
        return "" if script is None else hashlib.sha256(script.read_bytes()).hexdigest()
    return ""


def resumable(planned: Comparison, out: Path) -> tuple[Comparison | None, str]:
    """The newest comparison in ``out``, ``out-2``, ... if it is this one, as far as it has come; else None, and why not.

    Nothing is said where there is nothing to resume: none was begun, or it is complete.
    """
    directory = latest_directory(out)
    if directory is None or not (directory / FILE_NAME).exists():
        return None, ""
    try:
        earlier = read_results(directory)
    except ConfigError:
        return None, ""
    if not isinstance(earlier, Comparison) or not turns_left(earlier):
        return None, ""
    now, then = _identity(planned), _identity(earlier)
    differing = [name for name in now if now[name] != then[name]]
    if differing:
        return None, f"{directory} is incomplete, and cannot be resumed, because these differ: {', '.join(differing)}"
    with held(directory) as is_mine:
        if not is_mine:
            return None, f"{directory} is not resumed: it is still running, or its file system has no locks"
    return dataclasses.replace(earlier, task=planned.task), ""


@contextlib.contextmanager
def held(directory: Path) -> Iterator[bool]:
    """Keep others from resuming the comparison in a directory: it runs here. Yields whether nobody else holds it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held, or no locks here: then nobody resumes what may be running
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _identity(comparison: Comparison) -> dict[str, Any]:
    """What all runs of a comparison must have in common, by its name in messages."""
    task = comparison.task
    machine = dataclasses.asdict(comparison.machine)
    return {
        "script": (str(task.script), task.is_module, comparison.source),
        "arguments": tuple(task.args),
        "methods": tuple(result.row for result in comparison.rows),
        "rounds": comparison.rounds,
        "shards": task.shards,
        "threads": comparison.threads,
        "seed": task.seed,
        "time limit": task.timeout_s,
        "machine or versions": {name: value for name, value in machine.items() if name not in _OF_THE_MOMENT},
    }
