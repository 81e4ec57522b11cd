"""What a run says, when it starts, of the script's loop."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from typing_extensions import override

from lockstep._joining.instrument import Instrument, Run
from lockstep._tools.check.files import read_script
from lockstep._tools.check.findings import Finding

_MOST_SAID = 5


class Reading(Instrument):
    """In every run of the user's own."""

    @override
    def notices(self, run: Run) -> Iterable[str]:
        """What is found in the script that this process runs."""
        return () if run.asked else notices(read_main(), resumes=run.config.checkpoint_every != "off")


def read_main() -> list[Finding]:
    """What the reading finds in the script that this process runs. Never an error: a run does not
    depend on it. In a notebook, which has no file, nothing is found."""
    findings: list[Finding] = []
    with contextlib.suppress(Exception):
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        if file:
            findings = read_script(from_here(Path(file)))
    return findings


def notices(findings: Sequence[Finding], *, resumes: bool) -> list[str]:
    """Lines for the console: a warning for each that makes the answer another on other numbers of
    processes, then one line for all that starts anew on a resume.

    Args:
        findings: of the reading.
        resumes: whether the run is saved at all.
    """
    here = [finding for finding in findings if not finding.restarts_on_resume]
    lines = [
        f"WARNING: {finding.path}:{finding.line}: {finding.message} ({finding.code}). Write: {finding.remedy}"
        for finding in here[:_MOST_SAID]
    ]
    if len(here) > _MOST_SAID:
        lines.append(f"WARNING: and {len(here) - _MOST_SAID} more: lockstep check {here[0].path}")
    carried = [finding for finding in findings if finding.restarts_on_resume]
    if carried and resumes:
        told = ", ".join(f"`{finding.name}` ({finding.path}:{finding.line})" for finding in carried)
        lines.append(f"starts over on a resume: {told}. To keep {'it' if len(carried) == 1 else 'them'}: {_remedy(carried)}")
    return lines


def _remedy(carried: Sequence[Finding]) -> str:
    if len(carried) == 1:
        return carried[0].remedy
    if all(finding.code == "LS201" for finding in carried):
        names = list(dict.fromkeys(finding.name.rpartition(".")[2] for finding in carried))
        values = ", ".join(f"{name}=..." for name in names)
        return f"state = team.state({values}) before the loop, then state.{names[0]}"
    return f"lockstep check {carried[0].path}"


def from_here(path: Path) -> Path:
    """A path as it is shown: relative to the working directory, if it is in there."""
    with contextlib.suppress(ValueError, OSError):
        return path.absolute().relative_to(Path.cwd())
    return path
