"""The findings about a script's loop that its run prints when it starts."""

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
    """The instrument that checks the script of every run that a user starts."""

    @override
    def notices(self, run: Run) -> Iterable[str]:
        """The findings in the script that this process runs, as lines."""
        if run.requests:
            return ()
        findings = [finding for finding in read_main() if run.has_deterministic_kernels or not finding.raises_on_gpu]
        return notices(findings, resumes=run.config.checkpoint_every != "off")


def read_main() -> list[Finding]:
    """The findings in the script that this process runs. Never raises, since a run does not depend
    on them. A notebook has no file, so nothing is found."""
    findings: list[Finding] = []
    with contextlib.suppress(Exception):
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        if file:
            findings = read_script(from_here(Path(file)))
    return findings


def notices(findings: Sequence[Finding], *, resumes: bool) -> list[str]:
    """Lines for the console: a warning for each finding with results that depend on the number of
    processes, then one line for all values that a resume resets.

    Args:
        findings: about the script.
        resumes: whether the run is saved at all.
    """
    here = [finding for finding in findings if not finding.restarts_on_resume]
    lines = [
        f"WARNING: {finding.path}:{finding.line}: {finding.message} ({finding.code}). Write: {finding.remedy}"
        for finding in here[:_MOST_SAID]
    ]
    if len(here) > _MOST_SAID:
        lines.append(f"WARNING: {len(here) - _MOST_SAID} more findings: lockstep check {here[0].path}")
    carried = [finding for finding in findings if finding.restarts_on_resume]
    if carried and resumes:
        names = ", ".join(f"`{finding.name}` ({finding.path}:{finding.line})" for finding in carried)
        lines.append(f"reset by a resume: {names}. To keep {'it' if len(carried) == 1 else 'them'}: {_remedy(carried)}")
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
    """A path for the user: relative to the working directory, if it is inside."""
    with contextlib.suppress(ValueError, OSError):
        return path.absolute().relative_to(Path.cwd())
    return path
