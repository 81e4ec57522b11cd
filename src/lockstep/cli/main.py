"""Entry point of the command ``lockstep``."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from lockstep.errors import ConfigError, LaunchError, LockstepError, UsageError


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit with its status."""
    arguments = sys.argv[1:] if args is None else list(args)
    try:
        status = _run(arguments)
    except KeyboardInterrupt:  # outside of the commands' own handling: while modules are imported
        print("stopped by Ctrl-C", file=sys.stderr)
        status = 130
    if args is None:
        _leave_threads(status)
    sys.exit(status)


def _leave_threads(status: int) -> None:
    """End this process at once if a daemon thread is left.

    Such a thread (torchelastic's or ours) waits for PyTorch's store on an unreachable machine. If its request returns
    while the interpreter shuts down, it aborts the process with status 134 (up to Python 3.13, for threads returning from C++).
    All other resources have been released by now.
    """
    if not any(thread.daemon for thread in threading.enumerate()):
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader of a pipe is gone
            stream.flush()
    os._exit(status)


def _run(args: list[str]) -> int:
    from lockstep.launch.server import drop_early, start_early

    try:
        if args[:1] == ["run"] and not {"--help", "-h"} & set(args):
            # Importing torch takes most of a launch's time: start it before anything else is imported.
            start_early()
        return _run_group(args)
    except LockstepError as error:
        return show_error(error)
    finally:
        drop_early()


def _run_group(args: list[str]) -> int:
    import click

    from lockstep.cli.group import group

    try:
        return group.main(args=args, prog_name="lockstep", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130


def show_error(error: LockstepError) -> int:
    """Print an error without a traceback; returns the exit status."""
    import click

    click.echo(click.style("error:", fg="red", bold=True) + f" {error}", err=True)
    if isinstance(error, (ConfigError, UsageError)):
        return 2
    return error.exit_status if isinstance(error, LaunchError) else 1


if __name__ == "__main__":
    main()
