"""Making sure that all ranks of a run are about to do the same."""

from __future__ import annotations

from lockstep.comm.collectives import Collectives
from lockstep.errors import MismatchError

_REMEDY = "They must all run the same script on the same data: look for code that depends on the rank, the host or the time"


def compare_ranks(what: str, lines: list[str], collectives: Collectives, remedy: str = _REMEDY) -> None:
    """Make sure that all ranks have the same lines. Every rank must call it.

    Args:
        what: the lines are, for the user.
        lines: of this rank.
        collectives: of all ranks.
        remedy: what is to be done if they differ.

    Raises:
        MismatchError: they differ; the message has the first line that does.
    """
    everyone = collectives.all_gather_object(lines)
    for rank, theirs in enumerate(everyone):
        if theirs == everyone[0]:
            continue
        longest = max(len(theirs), len(everyone[0]))
        pairs = zip([*everyone[0], *["nothing more"] * longest], [*theirs, *["nothing more"] * longest], strict=False)
        first, other = next((a, b) for a, b in pairs if a != b)
        raise MismatchError(f"the ranks have different {what}: rank 0 has `{first}`, rank {rank} has `{other}`. {remedy}.")
