"""Entry point of the command ``lockstep``."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from lockstep._base.errors import ConfigError, LaunchError, LockstepError, UsageError, os_error_text

_INTERRUPTED = 128 + signal.SIGINT
_OF_PATHS = {errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EPERM, errno.EROFS}
"""The system errors about a path that are reported without a traceback, where no command reports
more: the user has passed the path, or a file of a run contains it."""
_STARTS_NOTHING = {"--help", "--help-all", "-h"}


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit with its status."""
    arguments = sys.argv[1:] if args is None else list(args)
    if args is None and arguments[:1] == ["run"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the launcher listens to signals. An exception is lost where it meets one of the
        # import system's callbacks.
        signal.signal(signal.SIGINT, _stop_importing)
    try:
        status = _run(arguments)
    except KeyboardInterrupt:  # outside of the commands' own handling: while modules are imported
        print("stopped by Ctrl-C", file=sys.stderr)
        status = _INTERRUPTED
    if args is None and (status == _INTERRUPTED or any(thread.daemon for thread in threading.enumerate())):
        _leave_at_once(status)
    sys.exit(status)


def _stop_importing(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"stopped by Ctrl-C\n")
    os._exit(_INTERRUPTED)  # the fork server ends with this process


def _leave_at_once(status: int) -> NoReturn:
    """End this process without what the interpreter does when it shuts down. All resources have
    been released by now.

    A daemon thread (torchelastic's or ours) that waits for PyTorch's store on an unreachable
    machine aborts the process with status 134 if its request returns meanwhile (up to Python 3.13,
    for threads returning from C++). And a Ctrl-C that passed through ``exec`` of a text, as in
    ``dataclasses``, makes ``python -m`` end by SIGINT, although it was handled."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader of a pipe is gone
            stream.flush()
    os._exit(status)


def _run(args: list[str]) -> int:
    from lockstep._launch.server import start_early

    early = None
    try:
        if args[:1] in (["run"], ["replay"], ["doctor"]) and not _STARTS_NOTHING & set(args):
            # Importing torch takes most of a launch's time: start it before anything else is
            # imported.
            early = start_early()
        return _run_group(args)
    except LockstepError as error:
        return show_error(error)
    except OSError as error:
        if error.errno not in _OF_PATHS or error.filename is None:
            raise
        return show_error(ConfigError(f"{error.filename}: {os_error_text(error)}"))
    finally:
        if early is not None:
            early.close()


def _run_group(args: list[str]) -> int:
    import click

    from lockstep._cli.echo import echo
    from lockstep._cli.group import group

    try:
        return group.main(args=args, prog_name="lockstep", standalone_mode=False) or 0
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        echo(said.getvalue().rstrip("\n"), err=True, has_lines=True)
        return error.exit_code
    except click.Abort:
        return _INTERRUPTED


def show_error(error: LockstepError) -> int:
    """Print an error without a traceback; returns the exit status."""
    from lockstep._base.reports import REFUSED, Report, note
    from lockstep._cli.echo import Styled, echo
    from lockstep._events.failure import FailureRecord
    from lockstep._world.environment import failure_file

    summary = error.summary if isinstance(error, LaunchError) else str(error).partition("\n")[0]
    FailureRecord(summary=summary, report=f"error: {error}").write(failure_file())
    note(Report(kind=REFUSED, text=str(error), cause=type(error).__name__, code=error.code))
    echo(Styled("error:", "red", bold=True), f" {error}", err=True, has_lines=True)
    if isinstance(error, (ConfigError, UsageError)):
        return 2
    return error.exit_status if isinstance(error, LaunchError) else 1


if __name__ == "__main__":
    main()
