"""The files of a run directory of which every rank has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def file_of(directory: str, rank: int) -> str:
    """The path of a rank's file, relative to the run directory."""
    return f"{directory}/rank-{rank}.jsonl"


def files(run_dir: Path, directory: str) -> Iterator[str]:
    """Those of all ranks, in order. (Every launch has a rank 0, and all ranks below its highest.)"""
    rank = 0
    while (run_dir / (name := file_of(directory, rank))).is_file():
        yield name
        rank += 1
