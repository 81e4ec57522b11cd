"""``lockstep doctor``: check that this machine, or several together, can train."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lockstep._base.errors import LockstepError
from lockstep._cli.echo import echo, echo_json
from lockstep._cli.options import command_of_script, given, given_settings
from lockstep._cli.progress import Progress
from lockstep._cli.terminal import open_console, sigterm_interrupts
from lockstep._launch.joins import Joining, joining_of
from lockstep._launch.options import LaunchOptions
from lockstep._launch.program import find_script
from lockstep._launch.script import run_script
from lockstep._launch.server import drop_server
from lockstep._launch.source import Source
from lockstep._tools.doctor import processes
from lockstep._tools.doctor.finding import FAIL, Finding, Situation, fail
from lockstep._tools.doctor.shown import show, situation_of
from lockstep._tools.doctor.table import examine

_EPILOG = """
\b
Examples:
  lockstep doctor
      this machine, and communication between two processes on it
  lockstep doctor --nproc 4
      for a run on four processes
  lockstep doctor --json | jq '.[] | select(.state != "ok")'
      for other programs
  lockstep doctor --nnodes 2 --node-rank 0 --master-addr host0
      on host0; use --node-rank 1 on the other machine
  srun --nodes 2 --ntasks-per-node 1 lockstep doctor
      all machines of a Slurm job, and the links between them
  lockstep doctor --nproc 4 train.py && lockstep run --nproc 4 train.py
      starts the run unless a check fails

All options of lockstep run are accepted: replace run by doctor in its command line. SCRIPT is not run.

Exit status: 0 if no check failed (warnings do not count), 1 if a check failed, 2 if the arguments are invalid, 130 after
Ctrl-C.
"""
_RENDEZVOUS_S = 60.0
_SHOWN = (
    *("nproc_per_node", "is_module", "threads", "workers", "device", "backend"),
    *("nnodes", "node_rank", "master_addr", "master_port", "rdzv_endpoint"),
)
_OF_HOSTS = ("backend", "device", "timeout_s")


@command_of_script("doctor", shown=_SHOWN, epilog=_EPILOG, needs_script=False)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON array with one object per check and host, with all values."
)
def command(script: str | None, args: tuple[str, ...], as_json: bool, **values: Any) -> int:
    """Check that this machine, or several together, can train.

    Each check reports ok, warn (a run works, but slowly or not for long) or fail (a run does not
    work), with the values found and a remedy."""
    options, settings = LaunchOptions(**given(LaunchOptions, values)), given_settings(values)
    began_s, console = time.monotonic(), open_console(quiet=as_json)
    joining = Joining()
    if script is not None:
        path = find_script(script, is_module=options.is_module, is_executable=options.is_executable)
        joining = joining_of(None if path is None else Source.read(path, Path.cwd() if options.is_module else None))
    situation = situation_of(options, joining.merged(settings))
    with sigterm_interrupts(), Progress(console, is_brief=True) as progress:
        findings = examine(situation, progress.started)
        prints = True
        if situation.nodes is not None:
            progress.started("the other machines")
            findings, prints = _with_other_launchers(options, settings, situation, findings)
        elif situation.world.world_size > 1:
            progress.started("the other processes")
            findings, prints = _with_other_processes(situation, findings)
        else:
            progress.started(processes.NAME)
            # Two are enough to exchange something.
            exchange = dataclasses.replace(situation, num_processes=max(2, situation.num_processes))
            findings.append(processes.CHECK.examine(exchange))
            drop_server()
    if prints and as_json:
        echo_json([dataclasses.asdict(finding) for finding in findings])
    elif prints:
        show(findings, time.monotonic() - began_s, console)
    return int(any(finding.state == FAIL for finding in findings))


def _with_other_launchers(
    options: LaunchOptions, settings: Mapping[str, Any], situation: Situation, here: Sequence[Finding]
) -> tuple[list[Finding], bool]:
    """Returns all hosts' findings, and whether this host prints them: each host's launcher starts
    its part."""
    launch_options = dataclasses.replace(
        options,
        nproc_per_node=str(situation.num_processes),
        is_module=True,
        is_executable=False,
        spawns="no",
        max_restarts=0,
        attach=None,
    )
    of_hosts = {"timeout_s": _RENDEZVOUS_S, **{name: value for name, value in settings.items() if name in _OF_HOSTS}}
    with tempfile.TemporaryDirectory(prefix="lockstep-doctor-") as directory:
        path = Path(directory, "findings.json")
        path.write_text(json.dumps([dataclasses.asdict(finding) for finding in here]))
        try:
            interruption = run_script("lockstep._tools.doctor.over_hosts", [str(path)], launch_options, of_hosts)
        except LockstepError as error:
            return [*here, _rendezvous_failed(error)], True
        if interruption is not None:
            echo(interruption.message, err=True)
            sys.exit(interruption.status)
        report = json.loads(path.read_text())
    return [Finding(**fields) for fields in report["findings"]], report["rank"] == 0


def _with_other_processes(situation: Situation, here: Sequence[Finding]) -> tuple[list[Finding], bool]:
    """Returns all hosts' findings, and whether this process prints them, where srun, torchrun or
    mpirun has started this command several times."""
    from lockstep._tools.doctor.over_hosts import compare_hosts  # imports torch

    try:
        findings, rank = compare_hosts(situation, here)
    except LockstepError as error:
        return [*here, _rendezvous_failed(error)], True
    return findings, rank == 0


def _rendezvous_failed(error: LockstepError) -> Finding:
    verdict = fail(
        f"the rendezvous failed: {error}", "see the message for the missing machine or the cause", code="rendezvous-failed"
    )
    return dataclasses.replace(verdict, check="rendezvous")
