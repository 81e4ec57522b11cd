"""The failures of a launch, in fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep._base.reports import FAILED, Report
from lockstep._launch.failures import Failure, place_of


def reports_of(failures: Sequence[Failure]) -> Iterator[Report]:
    """A report of each. They must be in order, the cause first."""
    for failure in failures:
        # Of a rank that ended before the others the script shows nothing: where those needed it is
        # what to look at.
        shown = failures if failure.ended_early else [failure]
        yield Report(
            kind=FAILED,
            text="\n\n".join(filter(None, (failure.summary(), failure.explanation, failure.remark))),
            # The report of what ended them says which ranks these are.
            ranks=() if failure.is_of_all else (failure.rank,),
            cause=failure.kind or ("ended early" if failure.ended_early else ""),
            code=failure.code,
            places={each.rank: place for each in shown if (place := place_of(each))},
        )
