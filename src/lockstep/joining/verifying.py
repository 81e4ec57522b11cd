"""Verifying a checkpoint before a run resumes from it: each rank reads a part of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.base.errors import CheckpointError
from lockstep.state.checkpoint.manifest import Manifest, verify, verify_file
from lockstep.state.checkpoint.parts import deal_out
from lockstep.state.recovery.resuming import Checkpoint
from lockstep.world.comm.collectives import Collectives

_VERIFY = "verify"


def verify_together(directory: Path, collectives: Collectives) -> Manifest:
    """``manifest.verify`` by all ranks. Called on rank 0, while the others are in ``await_opening``.

    What another rank finds wrong, rank 0 reads again: it may be that rank which does not see the directory.

    Raises:
        CheckpointError: a file is missing, or its content is not what was written.
    """
    if collectives.size == 1:
        return verify(directory)
    manifest = verify(directory, sizes_only=True)
    checkpoint = Checkpoint(path=directory.absolute(), manifest=manifest)
    collectives.broadcast_plain({_VERIFY: checkpoint.as_json()})
    for names in _verify_part(checkpoint, collectives):
        for name in names:
            verify_file(directory, manifest, name)
    return manifest


def await_opening(collectives: Collectives) -> dict[str, Any]:
    """On the other ranks: what rank 0 says of the run when it has opened it. Until then this rank verifies its part of each
    checkpoint that rank 0 asks about."""
    while True:
        said: dict[str, Any] = collectives.broadcast_plain(None)
        if _VERIFY not in said:
            return said
        _verify_part(Checkpoint.from_json(said[_VERIFY]), collectives)


def _verify_part(checkpoint: Checkpoint, collectives: Collectives) -> list[list[str]]:
    """The files in which each rank has found something wrong. Every rank must call it."""
    files = checkpoint.manifest.files
    dealt = deal_out({name: file["bytes"] for name, file in files.items()}, [0] * collectives.size)
    wrong = []
    for name in dealt[collectives.rank]:
        try:
            verify_file(checkpoint.path, checkpoint.manifest, name)
        except CheckpointError:
            wrong.append(name)
    return collectives.all_gather_plain(wrong)
