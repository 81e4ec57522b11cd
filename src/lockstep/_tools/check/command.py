"""``lockstep check``: read a script's loop, without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from lockstep._base.errors import UsageError
from lockstep._cli.echo import Styled, echo, echo_json
from lockstep._cli.options import CONTEXT
from lockstep._tools.check.files import has_loop, read_script
from lockstep._tools.check.findings import Finding
from lockstep._world.machine.sizes import counted

PAGE = "docs/check-codes.md"
"""The page that explains the codes."""
_EPILOG = """
\b
Examples:
  lockstep check train.py
      the findings, each with the line to write instead
  lockstep check train.py --json | jq '.findings[] | .code'
      for other programs

\b
Codes:
  LS1..  different results on another number of processes
  LS2..  reset by a resume, because no checkpoint contains it
  LS3..  a call in the wrong place
  LS4..  an error on a GPU
docs/check-codes.md explains each of them, with an example.

To accept a finding, end the line of the script with a comment:
# lockstep: ok, or # lockstep: ok LS102

Exit status: 0 without findings, 1 with findings, 2 if a script cannot be read or none of them trains with lockstep.
"""


@click.command("check", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("scripts", metavar="SCRIPT...", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(scripts: tuple[Path, ...], as_json: bool) -> None:
    """Find code in the training loops of SCRIPT whose result depends on the number of processes or
    is lost on resume.

    The command reads SCRIPT and the modules in its directory that it imports. It reports what the
    script writes in one place and reads in another: inside batch.shards and outside, or in one step
    and, after a resume, in a later one.

    Nothing is imported or run. A run reports the same findings when it starts."""
    if not scripts:
        raise UsageError("no script to check. Pass one: lockstep check train.py", code="check-no-script")
    for script in scripts:
        _check_readable(script)
    read = [script for script in scripts if has_loop(script)]
    if not read:
        names = ", ".join(map(str, scripts))
        raise UsageError(
            f"nothing to check in {names}: found neither lockstep.join() nor batch.shards, there or in the modules next to it. "
            "Pass the script that trains with lockstep: lockstep check train.py",
            code="check-no-loop",
        )
    findings = [finding for script in read for finding in read_script(script)]
    if as_json:
        echo_json({"findings": [finding.as_dict() for finding in findings], "scripts": [str(script) for script in read]})
    else:
        _show(findings, read)
    sys.exit(1 if findings else 0)


def _check_readable(script: Path) -> None:
    try:
        ast.parse(script.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as error:
        raise UsageError(f"cannot read {script}: {error}", code="check-unreadable") from None


def _show(findings: Sequence[Finding], scripts: Sequence[Path]) -> None:
    for finding in findings:
        where = f"{finding.path}:{finding.line}:{finding.column}"
        echo(Styled(where, bold=True), ": ", Styled(finding.code, "red"), f" {finding.message}")
        echo(f"    write: {finding.remedy}")
    counts = [
        (sum(f.differs for f in findings), "with results that depend on the number of processes"),
        (sum(f.restarts_on_resume for f in findings), "reset by a resume"),
        (sum(f.raises_on_gpu for f in findings), "with an error on a GPU"),
        (sum(not (f.differs or f.restarts_on_resume or f.raises_on_gpu) for f in findings), "in the wrong place"),
    ]
    said = [f"{number} {what}" for number, what in counts if number]
    if not said:
        echo(f"nothing found in {counted(len(scripts), 'script')}")
        return
    echo(f"{counted(len(findings), 'finding')}: {', '.join(said)}")
    echo(f"explanations and examples: {PAGE}")
