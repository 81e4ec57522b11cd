"""Whether a replay has computed what the run did. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep._tools.replay.digests import Digests
from lockstep._tools.replay.record import OF_BITS, Fields, RunRecord
from lockstep._tools.replay.request import Request
from lockstep._tools.verify.trace.differences import Comparison, compare

TOLERANCE = 1e-3
"""The relative difference up to which losses count as equal, for a run that is not bit-exact."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of comparing a replay with its run."""

    status: str
    """``equal``, ``equal up to rounding``, ``different``, or ``unknown``."""
    comparison: Comparison | None
    lines: tuple[str, ...]


def compare_with_run(request: Request, record: RunRecord, here: Fields, digests: Digests | None, mine: Digests) -> Verdict:
    """Compare a replay with its run.

    Args:
        request: what was replayed.
        record: of the run.
        here: the event ``start`` of the replay.
        digests: the run's journal; None: it has none.
        mine: the replay's.
    """
    launch = record.start_of(request.first)
    differing = [name for name in (*OF_BITS, "script_sha256") if _differs(here, launch, name)]
    notes = [f"{name} is {here[name]} here, but was {launch[name]} in the run" for name in differing if name in OF_BITS]
    if "script_sha256" in differing:
        notes.append("the script has changed since the run (its SHA-256 differs)")

    def verdict(status: str, comparison: Comparison | None, *lines: str) -> Verdict:
        return Verdict(status=status, comparison=comparison, lines=(*notes, *lines))

    if digests is None:
        why = "not compared: the run has no digest journal (--journal-every 0, or an older lockstep)"
        return verdict("unknown", None, why)
    steps = range(request.after + 1, request.last + 1)
    comparison = compare(digests, mine, steps)
    difference, missing = comparison.difference, _not_compared(comparison, request)
    if difference is None and missing:
        known = f". Equal until then: {_counted(comparison)}" if comparison.steps else ""
        line = f"cannot compare step {missing[0]}: the run's digest journal does not contain it{known}"
        return verdict("unknown", comparison, line)
    if difference is None:
        return verdict("equal", comparison, f"EQUAL to the run (bit-identical): {_counted(comparison)}")
    if not record.birth.exact and difference.stage in ("loss", "gradient", "state"):
        near = compare(digests, mine, steps, tolerance=TOLERANCE)
        how = (
            "the run's strategy is not 'exact', so on another number of processes its results are equal only up to rounding; "
            f"compared losses with a tolerance of {TOLERANCE:g}"
        )
        if near.difference is not None:
            line = f"DIFFERENT even so, first in {near.difference.place}: {near.difference.pair} (run vs replay)"
            return verdict("different", near, how, line)
        if not _not_compared(near, request):
            return verdict(
                "equal up to rounding", near, how, f"EQUAL within the tolerance: losses of {len(near.steps)} steps"
            )
    line = f"DIFFERENT from the run, first in {difference.place}: {difference.pair} (run vs replay)"
    why = (
        "likely cause: the difference above"
        if differing
        else "likely cause: something outside of checkpoints has changed: the dataset, an imported module, the time, a "
        "variable that is not registered, or a nondeterministic kernel. `lockstep verify` finds what depends on chance"
    )
    return verdict("different", comparison, line, why)


def _not_compared(comparison: Comparison, request: Request) -> list[int]:
    return [step for step in request.steps if step not in comparison.steps]


def _differs(here: Fields, launch: Fields, name: str) -> bool:
    return here.get(name) is not None and launch.get(name) is not None and here[name] != launch[name]


def _counted(comparison: Comparison) -> str:
    after = f", gradient and state after {_listed(comparison.states)}" if comparison.states else ""
    first, last = comparison.steps[0], comparison.steps[-1]
    return f"samples and losses of {f'step {first}' if first == last else f'steps {first} to {last}'}{after}"


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) <= 6 else f"{steps[0]}, {steps[1]}, ..., {steps[-1]}"
