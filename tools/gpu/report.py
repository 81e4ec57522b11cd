"""The report to send, ``report.md``, and the same for programs, ``report.json``. Both are complete
after every stage."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.outcome import Outcome

# of output in report.md; of what has failed: all that is kept
LINES = {"passed": 12, "rehearsed": 12, "not run": 0}


def write(
    out: Path, began: str, device: str, machine: dict[str, Any], outcomes: Sequence[Outcome], remedies: dict[str, str]
) -> None:
    """Write both files.

    Args:
        out: The directory.
        began: When the series began.
        device: What it ran on.
        machine: What ``gpu.machine`` found.
        outcomes: Of the stages so far.
        remedies: For names of stages that have failed, where to look.
    """
    whole = {
        "format": 1,
        "began": began,
        "device": device,
        "machine": machine,
        "stages": [dataclasses.asdict(outcome) for outcome in outcomes],
    }
    _replace(out / "report.json", json.dumps(whole, indent=1, default=str) + "\n")
    _replace(out / "report.md", render(began, device, machine, outcomes, remedies))


def render(began: str, device: str, machine: dict[str, Any], outcomes: Sequence[Outcome], remedies: dict[str, str]) -> str:
    """The page."""
    title = "lockstep on a GPU" if device == "cuda" else f"Rehearsal on {device} (no result for a GPU)"
    rows = [
        f"| {outcome.number} | {outcome.name} | {outcome.verdict} | {outcome.seconds:.0f} | {outcome.why} |"
        for outcome in outcomes
    ]
    parts = [f"# {title}", f"Begun {began}.", "\n".join(["| | stage | | seconds | |", "|---:|---|---|---:|---|", *rows])]
    if machine:
        parts += ["## Machine", _block(json.dumps(machine, indent=1, default=str))]
    for outcome in outcomes:
        parts.append(f"## {outcome.number} {outcome.name}: {outcome.verdict}")
        if outcome.why:
            parts.append(outcome.why)
        if outcome.name in remedies:
            parts.append(_block(remedies[outcome.name]))
        if outcome.left_behind:
            parts += ["Processes that it had left behind, and that were killed:", _block("\n".join(outcome.left_behind))]
        if outcome.command:
            parts.append(_block("$ " + " ".join(outcome.command)))
        if outcome.found and outcome.number:  # the machine has been shown
            parts.append(_block(json.dumps(outcome.found, indent=1, default=str)))
        lines = outcome.output.splitlines()
        shown = lines[-LINES[outcome.verdict] or len(lines) :] if outcome.verdict in LINES else lines
        if shown:
            parts.append(_block("\n".join(shown)))
    return "\n\n".join(parts) + "\n"


def _block(text: str) -> str:
    return f"````\n{text}\n````"


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
