"""``lockstep run``, less its command line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.config import RunConfig
from lockstep.errors import ConfigError
from lockstep.launch import restarts
from lockstep.launch.binding import announce, bind_here
from lockstep.launch.local import check_fit, resolve_nproc, run_workers
from lockstep.launch.output import OutputPlan
from lockstep.launch.private import private_directory
from lockstep.launch.program import check_script, check_starter, find_script
from lockstep.launch.server import take_server
from lockstep.launch.signals import Interrupts


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
) -> signal.Signals | None:
    """Run a script in ``nproc`` processes to its end; None if all went well, else the signal that stopped it.

    Up to ``max_restarts`` times, all are started again when one has failed. A script that starts its processes itself
    (``spawns``) runs once. ``is_executable``: the target is a program, and no Python. ``bind``: see ``binding.bind_here``.

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
    check_fit(config, count)
    restarts.check_max_restarts(max_restarts)
    binding = bind_here(bind, count, config)
    if attach is not None and not 0 <= attach < count:
        raise ConfigError(f"--attach {attach}: with {count} processes ranks go from 0 to {count - 1}")
    if attach is None and count == 1 and log_dir is None and not tee:
        attach = 0  # a lone process may as well have the terminal
    for guess in script.guesses:
        print(f"lockstep: {guess}", file=sys.stderr, flush=True)
    announce(bind, binding)
    with Interrupts() as interrupts, private_directory() as private_dir:
        server = take_server(count)
        try:
            outcome = run_workers(
                script,
                nproc=count,
                settings=settings,
                server=server,
                private_dir=private_dir,
                plan=OutputPlan(log_dir=log_dir, tee=tee, attach=attach),
                interrupts=interrupts,
                max_restarts=max_restarts,
                binding=binding,
            )
        finally:
            server.close()
    if outcome.failures:
        raise restarts.last_error(outcome.failures, outcome.spec, attached=attach)
    return outcome.stopped_by


def stopped_message(stopped_by: signal.Signals) -> str:
    """One line for the user."""
    who = "Ctrl-C" if stopped_by is signal.SIGINT else stopped_by.name
    return f"stopped by {who}: all processes of process {os.getpid()} have ended"
