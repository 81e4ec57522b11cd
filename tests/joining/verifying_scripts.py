"""All ranks verify checkpoints, as they do before a run resumes."""

from pathlib import Path

import lockstep
from lockstep.base.errors import CheckpointError
from lockstep.joining import verifying


def verify(directories, blind):
    """On rank 0, the step of each checkpoint, or what is wrong with it; on each rank, the files that it has read.

    Args:
        directories: the checkpoints, in the order in which rank 0 verifies them.
        blind: a rank that cannot read any file.
    """
    read, verify_file = [], verifying.verify_file
    with lockstep.join() as team:

        def noted(directory, manifest, name):
            read.append(f"{directory.name}/{name}")
            if team.rank == blind:
                raise CheckpointError("no such file here")
            verify_file(directory, manifest, name)

        verifying.verify_file = noted
        collectives = team._engine.collectives
        try:
            if team.rank > 0:
                return verifying.await_opening(collectives), read
            found = []
            for directory in directories:
                try:
                    found.append(verifying.verify_together(Path(directory), collectives).step)
                except CheckpointError as error:
                    found.append(str(error))
            collectives.broadcast_plain({"run_dir": "here"})
            return found, read
        finally:
            verifying.verify_file = verify_file
