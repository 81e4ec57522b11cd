"""``lockstep run``, less its command line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.config import RunConfig
from lockstep.errors import ConfigError
from lockstep.launch import restarts
from lockstep.launch.binding import announce, bind_here
from lockstep.launch.local import check_fit, resolve_nproc, run_workers
from lockstep.launch.nodes import Nodes, Place, find_place, introduce
from lockstep.launch.output import OutputPlan
from lockstep.launch.private import private_directory
from lockstep.launch.program import check_script, check_starter, find_script
from lockstep.launch.server import take_server
from lockstep.launch.signals import Interrupts
from lockstep.launch.spec import Script
from lockstep.launch.supervise import Outcome
from lockstep.stopping import REQUEUE_STATUS


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """The end of a launch that somebody has asked for."""

    status: int
    """What the command should end with."""
    message: str
    """One line for the user."""


def run_script(
    target: str,
    args: Sequence[str] = (),
    *,
    is_module: bool = False,
    nproc: str | int | None = None,
    settings: Mapping[str, Any] | None = None,
    log_dir: Path | None = None,
    tee: bool = False,
    attach: int | None = None,
    pass_local_rank: str = "auto",
    spawns: str = "auto",
    is_executable: bool = False,
    max_restarts: int = 0,
    bind: str = "none",
    nodes: Nodes | None = None,
    master_port: int | None = None,
) -> Interruption | None:
    """Run a script in ``nproc`` processes to its end; None if all went well, else how it was stopped.

    Up to ``max_restarts`` times, all are started again when one has failed. A script that starts its processes itself
    (``spawns``) runs once. ``is_executable``: the target is a program, and no Python. ``bind``: see ``binding.bind_here``.
    ``nodes``: of several machines; this runs its part on this one, with ``nproc`` processes. ``master_port``: for scripts that
    meet through ``env://`` on one machine.

    Raises:
        ConfigError: something asked for cannot be; nothing was started.
        LaunchError: a worker failed, and no restart was left; the message holds the first failure, and who else failed.
    """
    settings = {} if settings is None else settings
    config = RunConfig.merge(settings, {})
    source = find_script(target, is_module=is_module, is_executable=is_executable)
    script = check_script(
        target,
        source,
        is_module=is_module,
        is_executable=is_executable,
        args=args,
        pass_local_rank=pass_local_rank,
        spawns=spawns,
        nproc_given=nproc is not None,
    )
    count = 1 if nproc is None and script.starter is not None else resolve_nproc(nproc, config)
    check_starter(script, count)
    if nodes is not None and script.starter is not None:
        raise ConfigError(
            f"the script starts its processes itself ({script.starter}), and knows nothing of other nodes: start it on each "
            "machine as it wants to be. If it does not do that when a launcher has started it, say --spawns no"
        )
    check_fit(config, count, nodes.most - 1 if nodes is not None else 0)
    restarts.check_max_restarts(max_restarts)
    binding = bind_here(bind, count, config)
    if attach is not None and nodes is None and not 0 <= attach < count:
        raise ConfigError(f"--attach {attach}: with {count} processes ranks go from 0 to {count - 1}")
    if attach is None and nodes is None and count == 1 and log_dir is None and not tee:
        attach = 0  # a lone process may as well have the terminal
    for guess in script.guesses:
        print(f"lockstep: {guess}", file=sys.stderr, flush=True)
    announce(bind, binding, is_one_of_several=nodes is not None)
    plan = OutputPlan(log_dir=log_dir, tee=tee, attach=attach)
    place = find_place(nodes) if nodes is not None else None
    with Interrupts() as interrupts, private_directory() as private_dir:
        server = take_server()
        try:
            if count > 1 and script.has_optimizer and script.starter is None:
                server.warm()  # once for all workers, instead of in each
            how: dict[str, Any] = {
                "nproc": count,
                "settings": settings,
                "server": server,
                "private_dir": private_dir,
                "plan": plan,
                "interrupts": interrupts,
                "max_restarts": max_restarts,
                "binding": binding,
            }
            if nodes is not None and place is not None:
                outcome = _run_on_nodes(nodes, place, script, **how)
            else:
                outcome = run_workers(script, master_port=master_port or 0, **how)
        finally:
            server.close()
    if outcome.failures:
        raise restarts.last_error(outcome.failures, outcome.spec, attached=attach, stopped_by=outcome.stopped_by)
    return interruption(outcome)


def _run_on_nodes(nodes: Nodes, place: Place, script: Script, **options: Any) -> Outcome:
    environ = dict(os.environ)  # before what torch shall hear in this process alone
    os.environ.update({"TORCH_CPP_LOG_LEVEL": "ERROR", **environ})  # else it writes pages when a connection is lost
    introduce(nodes, place)
    from lockstep.launch.elastic.run import run_on_nodes  # imports torch, which one machine need not wait for

    return run_on_nodes(nodes, place, script, environ=environ, **options)


def interruption(outcome: Outcome) -> Interruption | None:
    """How a launch without failures was stopped; None: it was not."""
    by, status = outcome.stopped_by, outcome.stopped_with
    if by is None and status is None:
        return None
    who = "Ctrl-C" if by is signal.SIGINT else "a signal" if by is None else by.name
    message = f"stopped by {who}: all that lockstep run (process {os.getpid()}) had started has ended"
    if status is None:
        assert by is not None
        unsaved = ". The run was NOT saved: it resumes from the checkpoint before" if outcome.was_cut_short else ""
        return Interruption(status=128 + by, message=message + unsaved)
    saved = "the run is saved, the same command resumes it" if status == REQUEUE_STATUS else "the run could not be saved"
    return Interruption(status=status, message=f"{message}, with status {status}: {saved}")
