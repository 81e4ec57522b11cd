"""Names of run directories."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from lockstep._state.rundir.fixed_settings import NO_SCRIPT


def _stem(script: str) -> str:
    stem = Path(script).stem if script not in NO_SCRIPT else "run"
    if stem == "__main__":  # python -m package
        stem = Path(script).absolute().parent.name
    return stem


def default_run_dir(parent: Path, script: str) -> Path:
    """Creates a directory ``<parent>/<script's name>-<n>``.

    The number n is above all existing ones, even if lower ones were deleted, so that higher numbers
    mean newer runs."""
    stem = _stem(script)
    parent.mkdir(parents=True, exist_ok=True)
    number = 1 + next((number for number, _ in _numbered(parent, stem)), 0)
    while True:
        path = parent / f"{stem}-{number}"
        try:
            path.mkdir()  # atomic: two runs that start at the same time get two directories
        except FileExistsError:
            number += 1
        else:
            return path


def earlier_run_dirs(parent: Path, script: str) -> list[Path]:
    """Returns the directories created by ``default_run_dir`` for a script, newest first."""
    return [path for _, path in _numbered(parent, _stem(script))]


def _numbered(parent: Path, stem: str) -> list[tuple[int, Path]]:
    """Returns the directories ``<parent>/<stem>-<n>`` with their n, highest first."""
    named = re.compile(rf"{re.escape(stem)}-([1-9]\d*)")
    numbered = [(int(match[1]), path) for path in parent.glob("*") if (match := named.fullmatch(path.name))]
    return sorted(numbered, reverse=True)


def rename_old_run(path: Path) -> Path:
    """Renames a run directory to ``<name>.old-<n>``, to make room for a new run. Returns the new
    path."""
    for number in itertools.count(1):
        new_path = path.with_name(f"{path.name}.old-{number}")
        if not new_path.exists():
            path.rename(new_path)
            return new_path
    raise AssertionError
