"""Whether the program that the files of a run name is known to be the user's. Nothing of it is run
to find out.

A run directory may be copied from anywhere, and anyone who writes one chooses a command line. So
the program runs without a question only if every file below the directory belongs to this user and
is not writable by others, the directory is the very one in which the run was started (same inode),
and the script has the recorded SHA-256.
"""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path
from typing import Any

from lockstep._state.rundir.fixed_settings import script_sha256
from lockstep._tools.replay.record import Fields, RunRecord


def reason_to_confirm(record: RunRecord, start: Fields, *, runs_recorded: bool) -> str:
    """The reason to ask the user before the program runs; empty: this user has run it here before.

    Anyone who writes the files of a run chooses the program, its arguments and its working
    directory.

    Args:
        record: of the run.
        start: the event ``start`` of the launch that is repeated.
        runs_recorded: whether the script is that of the files, not one that the user has named.
    """
    inside = (Path(place, name) for place, *names in os.walk(record.path) for name in itertools.chain(*names))
    for path in itertools.chain([record.path], inside):
        try:
            status = path.lstat()
        except FileNotFoundError:  # a checkpoint that an active run has deleted
            continue
        if status.st_uid != os.geteuid():
            return f"{path} belongs to another user (user id {status.st_uid})"
        if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
            return f"{path} is writable by every user"
    if start.get("inode") != record.path.stat().st_ino:
        return f"{record.path} was copied or unpacked here, or its files were not written by lockstep"
    return _of_script(record.command.script, start.get("script_sha256")) if runs_recorded else ""


def _of_script(script: str, recorded: Any) -> str:
    if recorded is None:
        return f"the run has no digest of {script} to compare with"
    if script_sha256(Path(script)) != recorded:
        return f"{script} has changed since the run"
    return ""
