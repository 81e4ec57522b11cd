"""Where multiprocessing keeps the sockets of a worker and of the processes that it starts."""

from __future__ import annotations

import multiprocessing.process
import os
from pathlib import Path

_MOST_BYTES = 107
"""Of the path of a Unix socket."""
_NAME_BYTES = len("/listener-12345678")


def keep_sockets_in(private_dir: str) -> None:
    """Have multiprocessing use this directory for its sockets, here and in processes that it starts.

    Otherwise it makes one of its own, ``/tmp/pymp-...``, which a killed process cannot remove; the launcher, or the next one,
    removes its private directory. (The setting is private; ``multiprocessing.util.get_temp_dir`` returns it.)
    """
    place = Path(private_dir, "mp")
    if len(os.fsencode(place)) + _NAME_BYTES <= _MOST_BYTES:
        place.mkdir(mode=0o700, exist_ok=True)
        getattr(multiprocessing.process.current_process(), "_config", {})["tempdir"] = str(place)
