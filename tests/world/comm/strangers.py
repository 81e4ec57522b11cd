"""Scripts of ranks of which one is not what it says. Each function is one rank's script."""

import os
import pickle
from pathlib import Path

import lockstep
from lockstep._world.comm import group, plain


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (Path(self.mark),)


def leave_before_the_proof():
    """Rank 1 closes its connections when the group has opened."""
    if os.environ["RANK"] == "1":
        group.recognise = lambda *_: group.close_group()
    try:
        lockstep.join()
    except Exception as error:
        return type(error).__name__, str(error)
    return "joined", ""


def join_with_another_secret():
    """Rank 1 does not know the secret of the run."""
    os.environ["LOCKSTEP_SECRET"] = "a guess of somebody else" if os.environ["RANK"] == "1" else "the secret of the run"
    try:
        lockstep.join()
    except lockstep.LockstepError as error:
        return type(error).__name__, str(error)
    return "joined", ""


def open_a_group_with_another_secret():
    """Rank 1 does not know the secret by which the ranks have found each other."""
    with lockstep.join() as team:
        if team.rank == 1:
            group._key = b"a guess of somebody else"
        try:
            team.new_group([1, 0])
        except lockstep.LockstepError as error:
            return type(error).__name__
    return "opened"


def send_a_trap(mark):
    """Rank 1 sends a pickle where the ranks of a run exchange plain values."""
    if os.environ["RANK"] == "1":
        plain.pack = lambda value: pickle.dumps(Trap(mark))
    try:
        lockstep.join()
    except Exception as error:
        return type(error).__name__, Path(mark).exists()
    return "joined", Path(mark).exists()
