"""Imports what every ``join()`` needs, instruments too: the launcher's fork server imports this, so
that no worker has to."""

from __future__ import annotations

from lockstep._base import extensions
from lockstep._joining import join

__all__ = ["join"]

for _kind in ("instruments", "options"):
    for _name in extensions.built_in_names(_kind):  # not those of others, which may start threads
        extensions.load(_kind, _name)
