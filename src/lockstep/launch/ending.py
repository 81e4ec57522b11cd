"""A mark in the launch's private directory, for all of its processes: it is being ended, and what fails now is an echo."""

from __future__ import annotations

from pathlib import Path


def mark(private_dir: str, *, is_stopped: bool = False) -> None:
    """Let all processes of the launch know that it is being ended: by a failed worker, or by the launcher.

    ``is_stopped``: because somebody stopped the launcher, which then reports no failures.
    """
    Path(private_dir, "ending").touch()
    if is_stopped:
        Path(private_dir, "stopped").touch()


def is_over(private_dir: str) -> bool:
    """Whether it is, or has been: for its workers, while the launcher may be gone, and the directory with it."""
    return not Path(private_dir, "spec.pickle").exists() or is_marked(private_dir)


def is_marked(private_dir: str) -> bool:
    """The same for the launcher, which writes into the directory only when it starts the workers."""
    return Path(private_dir, "ending").exists()


def is_stopped(private_dir: str) -> bool:
    """Whether it is because somebody stopped the launcher."""
    return Path(private_dir, "stopped").exists()
