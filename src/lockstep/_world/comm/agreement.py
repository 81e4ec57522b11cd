"""Checking that all ranks of a run agree."""

from __future__ import annotations

from lockstep._base.errors import MismatchError
from lockstep._world.comm.collectives import Collectives

_REMEDY = "All ranks must run the same script on the same data. Look for code that depends on the rank, the host or the time"


def compare_ranks(noun: str, lines: list[str], collectives: Collectives, remedy: str = _REMEDY) -> None:
    """Checks that all ranks have the same lines. Every rank must call it; it blocks until all have.

    Args:
        noun: the user's word for the lines.
        remedy: what to do if they differ.

    Raises:
        MismatchError: the lines differ; the message shows the first difference.
    """
    everyone = collectives.all_gather_plain(lines)
    for rank, theirs in enumerate(everyone):
        if theirs == everyone[0]:
            continue
        longest = max(len(theirs), len(everyone[0]))
        pairs = zip([*everyone[0], *["nothing more"] * longest], [*theirs, *["nothing more"] * longest], strict=False)
        expected, line = next((a, b) for a, b in pairs if a != b)
        raise MismatchError(
            f"the ranks have different {noun}: rank 0 has `{expected}`, rank {rank} has `{line}`. {remedy}.",
            code="ranks-differ",
        )
