"""The series of stages, which ends at the first failure. The report is complete at every moment."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu import machine, report
from gpu.outcome import Outcome
from gpu.processes import run
from gpu.stage import ROOT, Hosts, Setting, Stage

MACHINE = Stage(
    name="machine",
    shows="what is installed, and what is missing",
    command=lambda setting, found: [sys.executable, "-m", "gpu.machine", "--found", str(found)],
    limit_s=30,
    causes=(
        "importing torch fails: its build does not fit this machine (see the output)",
        "it hangs: the driver hangs (and so does nvidia-smi)",
    ),
    read=("docs/gpu.md",),
)
SIMULATED_DEVICES = 4
KEPT = 20_000  # characters of a stage's output, in the report
SILENT_S = 20.0
SLOWER = 4.0  # a rehearsal on few cores: limits are for a machine with a GPU


def environment(device: str, base: Mapping[str, str]) -> dict[str, str]:
    """Of all stages: lockstep from this clone, whether it is installed or not."""
    before = [str(ROOT / "tests" / "simulated" / "autoload")] if device == "simulated" else []
    paths = [*before, str(ROOT / "src"), str(ROOT / "tools"), *filter(None, [base.get("PYTHONPATH")])]
    added = {"PYTHONPATH": os.pathsep.join(paths), "CUBLAS_WORKSPACE_CONFIG": base.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8")}
    if device == "simulated":
        added["SIM_DEVICES"] = str(SIMULATED_DEVICES)
    return {**base, **added}


class Series:
    """The stages that were asked for.

    Args:
        table: All stages, in their order.
        device: ``cuda``, ``cpu`` or ``simulated``.
        out: The directory of the report, which is made.
        limit_s: For every stage, if not its own.
        say: Prints a line.
        machine: The first stage, whose findings determine which of the others can run.
        hosts: The machines, if there are several.
    """

    def __init__(
        self,
        table: Sequence[Stage],
        *,
        device: str,
        out: Path,
        limit_s: float | None = None,
        say: Callable[[str], None] = print,
        machine: Stage = MACHINE,
        hosts: Hosts | None = None,
    ) -> None:
        self._first = machine
        self._table = table
        self._device = device
        self._out = out
        self._limit_s = limit_s
        self._say = say
        self._began = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        self._machine: dict[str, Any] = {}
        self._outcomes: list[Outcome] = []
        self._remedies: dict[str, str] = {}
        self._setting = Setting(device=device, num_devices=0, out=out, hosts=hosts)

    def run(self, numbers: Sequence[int], *, keep_going: bool = False) -> list[Outcome]:
        """Examines the machine, runs the stages with these numbers (from 1), and writes the report.
        Returns the outcome of each."""
        self._out.mkdir(parents=True, exist_ok=True)
        (self._out / "output.log").unlink(missing_ok=True)
        if not self._find_machine():
            return self._outcomes
        for number in numbers:
            stage = self._table[number - 1]
            self._say(f"{number}/{len(self._table)} {stage.name}: {stage.shows} (at most {self._limit(stage):.0f} s)")
            lacks = self._lacks(stage)
            outcome = (
                Outcome(number=number, name=stage.name, verdict="not run", why=lacks) if lacks else self._run(number, stage)
            )
            self._tell(stage, outcome)
            if outcome.has_failed and not keep_going:
                break
        return self._outcomes

    def _find_machine(self) -> bool:
        outcome = self._run(0, self._first)
        self._machine = outcome.found
        if not outcome.has_failed:
            if problem := unusable(self._machine, self._device):
                outcome = replace(outcome, verdict="unusable", why=problem)
            else:
                count = 2 if self._device == "cpu" else self._machine["torch"]["num_devices"]
                self._setting = replace(self._setting, num_devices=count)
        self._tell(self._first, outcome)
        return not outcome.has_failed

    def _limit(self, stage: Stage) -> float:
        usual_s = stage.limit_s * (SLOWER if self._setting.is_rehearsal else 1.0)
        return usual_s if self._limit_s is None else self._limit_s

    def _lacks(self, stage: Stage) -> str:
        """Why the stage cannot run here; empty if it can."""
        absent = [name for name in stage.distributions if machine.version(name) is None]
        if absent:
            return f"it needs {' '.join(absent)}: {sys.executable} -m pip install {' '.join(absent)}"
        if stage.needs_hosts and self._setting.hosts is None:
            return "it needs several machines: see --nnodes in --help"
        if (there := self._setting.num_devices) < stage.least_devices:
            only = "there is only 1" if there == 1 else f"there are only {there}"
            return f"it needs {stage.least_devices} devices, and {only}" + (f": {stage.instead}" if stage.instead else "")
        return ""

    def _run(self, number: int, stage: Stage) -> Outcome:
        log = self._out / "output.log"
        part = log.with_suffix(".part")
        part.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="lockstep-gpu-", ignore_cleanup_errors=True) as scratch:
            found = Path(scratch) / "found.json"
            command = stage.command(self._setting, found)
            environ = environment(self._device, os.environ) | (dict(stage.environ) if self._device == "cuda" else {})
            limit_s = self._limit(stage)
            echo = Echo(part, limit_s, self._say)
            ended = run(command, cwd=Path(scratch), environ=environ, log=part, limit_s=limit_s, watch=echo.watch)
            echo.finish()
            facts: dict[str, Any] = {}
            # a stage may be ended while it writes
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                facts = json.loads(found.read_text(encoding="utf-8"))
        output = part.read_text(encoding="utf-8", errors="replace")
        with log.open("ab") as whole, part.open("rb") as of_stage:
            whole.write(f"== {number} {stage.name}: {' '.join(command)}\n".encode())
            shutil.copyfileobj(of_stage, whole)
        part.unlink()
        outcome = Outcome(
            number=number,
            name=stage.name,
            verdict="passed",
            seconds=ended.seconds,
            limit_s=limit_s,
            command=tuple(command),
            status=ended.status,
            found=facts,
            output=output[-KEPT:],
            left_behind=ended.left_behind,
        )
        if ended.status is None:
            why = f"it had not ended after {limit_s:.0f} s; the stacks of its processes are in the output"
            return replace(outcome, verdict="hung", why=why)
        if ended.status:
            return replace(outcome, verdict="failed", why=_of_status(ended.status))
        if self._setting.is_rehearsal and stage.only_on_a_card:
            return replace(outcome, verdict="rehearsed", why=f"needs a GPU: {stage.only_on_a_card}")
        return outcome

    def _tell(self, stage: Stage, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        # what is wrong with such a machine has been said
        if outcome.has_failed and outcome.verdict != "unusable":
            alone = "" if outcome.number == 0 else f"--stage {stage.name}"
            if stage.needs_hosts and (hosts := self._setting.hosts) is not None:
                alone += "".join(f" --{name.replace('_', '-')} {value}" for name, value in vars(hosts).items())
            self._remedies[stage.name] = where_to_look(stage, alone, self._device)
        report.write(self._out, self._began, self._device, self._machine, self._outcomes, self._remedies)
        self._say(f"  {outcome.verdict} after {outcome.seconds:.0f} s" + (f": {outcome.why}" if outcome.why else ""))
        for line in outcome.left_behind:
            self._say(f"  left behind, and killed: {line}")
        if stage.name in self._remedies:
            self._say(self._remedies[stage.name])


def unusable(found: dict[str, Any], device: str) -> str:
    """Why nothing can be run on a machine of which this was found, with a remedy; empty if it
    can."""
    if found["missing"]:
        needed = " ".join(f"'{name}'" for name in found["missing"])
        return (
            f"this Python lacks requirements of lockstep: {sys.executable} -m pip install {needed} "
            "(without a network: pip download -d wheels, with these names, elsewhere; here add --no-index -f wheels)"
        )
    torch = found["torch"]
    if device == "cuda" and torch["kind"] != "cuda":
        build = f"is built for CUDA {torch['built for CUDA']}" if torch["built for CUDA"] else "is built without CUDA"
        return (
            f"torch {torch['version']} sees no CUDA GPU, so nothing was checked: it {build}, and nvidia-smi prints: "
            f"{found['driver'].splitlines()[0] if found['driver'] else 'nothing'}. In a container: docker run --gpus all; "
            "another Python: make gpu PYTHON=/path/to/python; without a GPU: make gpu ARGS='--device cpu' rehearses"
        )
    if device == "simulated" and torch["kind"] != "sim":
        return "the simulated device is not there: make simulated builds it"
    return ""


def where_to_look(stage: Stage, alone: str, device: str) -> str:
    """Returns the text for a reader after a stage failed."""
    on = "" if device == "cuda" else f" --device {device}"
    return "\n".join(
        [
            *[f"  likely: {cause}" for cause in stage.causes],
            f"  read:   {', '.join(stage.read)}",
            f"  alone:  {sys.executable} tools/gpu{on} {alone}".rstrip(),
        ]
    )


def _of_status(status: int) -> str:
    return f"it was ended by signal {-status}" if status < 0 else f"it ended with status {status}"


class Echo:
    """Shows what a stage prints while it runs, and that it still runs if it prints nothing."""

    def __init__(self, log: Path, limit_s: float, say: Callable[[str], None]) -> None:
        self._log = log
        self._limit_s = limit_s
        self._say = say
        self._place = 0
        self._rest = ""
        self._last_s = 0.0

    def watch(self, seconds: float) -> None:
        """Show whole lines, or after a silence the time."""
        with self._log.open("rb") as file:
            file.seek(self._place)
            new = file.read()
        self._place += len(new)
        *lines, self._rest = (self._rest + new.decode(errors="replace")).split("\n")
        for line in lines:
            self._say(f"  | {line}")
        if lines:
            self._last_s = seconds
        elif seconds - self._last_s > SILENT_S:
            self._last_s = seconds
            self._say(f"  {seconds:.0f} s of at most {self._limit_s:.0f}")

    def finish(self) -> None:
        """Show the rest."""
        self.watch(self._last_s)
        if self._rest:
            self._say(f"  | {self._rest}")
