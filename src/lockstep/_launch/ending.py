"""A mark in the launch's private directory, for all of its processes: the launch is being ended,
and failures from now on are consequences."""

from __future__ import annotations

from pathlib import Path


def mark(private_dir: str, *, is_stopped: bool = False) -> None:
    """Marks the launch as being ended. Called by a failed worker, or by the launcher.

    ``is_stopped``: because the launcher was stopped, which then reports no failures.
    """
    # A file, since it must be seen by processes that have no connection to the launcher: loader
    # workers look for it before they report an exception.
    Path(private_dir, "ending").touch()
    if is_stopped:
        Path(private_dir, "stopped").touch()


def is_over(private_dir: str) -> bool:
    """Whether the launch is being ended, or is finished. For workers: the launcher may have exited,
    and with it the directory."""
    return not Path(private_dir, "spec.pickle").exists() or is_marked(private_dir)


def is_marked(private_dir: str) -> bool:
    """Whether the launch is being ended. For the launcher, before it has started workers as
    well."""
    return Path(private_dir, "ending").exists()


def is_stopped(private_dir: str) -> bool:
    """Whether the launch is being ended because the launcher was stopped."""
    return Path(private_dir, "stopped").exists()
