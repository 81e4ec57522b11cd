"""Writing a batch file, without losing what somebody may have changed in the one before."""

from __future__ import annotations

import itertools
from pathlib import Path

from lockstep.base.atomic import write_atomic
from lockstep.base.errors import ConfigError


def write(file: Path, text: str) -> Path | None:
    """Write it. If something else was there, that is kept under another name, which is returned.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        if not file.exists():
            kept = None
        elif file.read_text(errors="replace") == text:
            return None
        else:
            kept = next(path for n in itertools.count(1) if not (path := file.with_name(f"{file.name}.old-{n}")).exists())
            file.rename(kept)
        write_atomic(file, text, mode=0o755)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error}): name another with --file") from error
    return kept
