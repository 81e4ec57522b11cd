"""Imports what every ``join()`` needs, including instruments. The launcher's fork server imports
this module, so that no worker has to."""

from __future__ import annotations

from lockstep._base import extensions
from lockstep._joining import join

__all__ = ["join"]

for _kind in ("instruments", "options"):
    for _name in extensions.built_in_names(_kind):  # others' extensions may start threads
        extensions.load(_kind, _name)
