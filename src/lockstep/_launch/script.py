"""``lockstep run``, without its command line."""

from __future__ import annotations

import functools
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError
from lockstep._base.reports import recorded_in
from lockstep._base.stopping import UNSAVED_END_STATUS, UNSAVED_STATUS, say
from lockstep._launch import restarts
from lockstep._launch.binding import check_binding
from lockstep._launch.endpoint import Endpoint, find_endpoint, introduce
from lockstep._launch.joins import Joining, joining_of
from lockstep._launch.local import check_fit, resolve_nproc, run_workers
from lockstep._launch.nodes import Nodes, plan_nodes
from lockstep._launch.options import LaunchOptions
from lockstep._launch.output import OutputPlan, leave_bar
from lockstep._launch.private import private_directory
from lockstep._launch.program import check_script, check_starter, find_script
from lockstep._launch.secret import SharedSecret, shared_secret
from lockstep._launch.server import ForkServer, take_server
from lockstep._launch.signals import Interrupts
from lockstep._launch.source import Source
from lockstep._launch.spec import LaunchSpec
from lockstep._launch.supervise import LaunchResult
from lockstep._launch.surroundings import check_surroundings
from lockstep._world.environment import read_secret
from lockstep._world.machine.addresses import check_loopback

_LOOK_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """The end of a launch without failures that was stopped by a signal, or whose run could not be
    saved."""

    status: int
    """The exit status for the command."""
    message: str
    """One line for the user."""


def run_script(
    target: str,
    args: Sequence[str],
    options: LaunchOptions,
    settings: Mapping[str, Any],
    asked: Mapping[str, Any] | None = None,
) -> Interruption | None:
    """Runs a script in several processes to its end; returns what kept it from a full success, or
    None if nothing did.

    A script that starts its processes itself runs once. With several machines, this runs the
    processes of one.

    Args:
        target: path of the script, name of the module, or a program.
        options: how it is started.
        settings: the requested fields of ``RunConfig``.
        asked: see ``LaunchSpec``.

    Raises:
        ConfigError: an option or setting is invalid here; nothing was started.
        LaunchError: a worker failed, and no restart was left; the message has the first failure,
            and who else failed.
    """
    config = RunConfig.merge(settings, {})
    nodes = plan_nodes(options)
    path = find_script(target, is_module=options.is_module, is_executable=options.is_executable)
    source = None if path is None else Source.read(path, Path.cwd() if options.is_module else None)
    script = check_script(target, source, args, options)
    starts_itself = options.nproc_per_node is None and script.starter is not None
    # A trial may be asked for other settings than those in the script, and each process of a
    # starter's is told its own.
    joining = Joining() if asked or script.starter is not None else joining_of(source)
    known = joining.merged(settings)
    count = 1 if starts_itself else resolve_nproc(options.nproc_per_node, known)
    check_starter(script, count)
    remark = check_surroundings(on_nodes=nodes is not None, is_alone=options.nnodes is not None)
    if nodes is not None and script.starter is not None:
        raise ConfigError(
            f"the script starts its own processes ({script.starter}), which do not meet processes of "
            "other machines. Start it on each machine without --nnodes. If it does not spawn under a "
            "launcher, pass --spawns no",
            code="script-starts-itself",
        )
    check_fit(known, count, nodes.most - 1 if nodes is not None else 0, "" if "shards" in settings else joining.where)
    check_binding(options.bind, config)
    if nodes is None and count > 1:
        check_loopback()
    plan = _plan_output(options, count, nodes)
    late = [] if source is None else source.lacks(arg.partition("=")[0] for arg in takewhile("--".__ne__, script.args))
    for line in (*script.guesses, *([remark] if remark else [])):
        say(line)
    if late:
        say(
            f"WARNING: {late[0]} after {target} is passed to the script, which does not define it. "
            "Put lockstep options before the script."
        )
    secret = None
    if nodes is not None:
        secret = shared_secret(nodes, config.run_dir, options.rdzv_secret_file, read_secret())
    with recorded_in(options.reports), Interrupts() as interrupts, private_directory() as private_dir:
        spec = LaunchSpec(
            program=script,
            nproc=count,
            private_dir=private_dir,
            settings=settings,
            master_port=options.master_port or 0,
            terminal=plan.on_terminal,
            max_restarts=options.max_restarts,
            bind=options.bind,
            asked=asked or {},
        )
        endpoint = None
        if nodes is not None and secret is not None:
            endpoint = _find_unless_stopped(nodes, secret, config.timeout_s, interrupts)
            if endpoint is None:
                stopped_by = signal.Signals(interrupts.received[0])
                return interruption(LaunchResult(failures=(), stopped_by=stopped_by, spec=spec))
        server = take_server()
        try:
            if script.has_optimizer and script.starter is None:
                server.warm()  # once for all workers and restarts, instead of in each
            run = run_workers if endpoint is None else _meet(endpoint)
            outcome = run(spec, server, plan, interrupts)
        finally:
            server.close()
    if plan.on_terminal and (outcome.failures or outcome.was_cut_short):
        leave_bar(is_killed=outcome.was_cut_short)
    if outcome.failures:
        raise restarts.last_error(
            outcome.failures,
            outcome.spec,
            attached=plan.attach,
            stopped_by=outcome.stopped_by,
            # With --fresh the same command starts over, so the error must not promise that it
            # resumes.
            joined=None if settings.get("fresh") else outcome.joined,
        )
    return interruption(outcome)


def _plan_output(options: LaunchOptions, nproc: int, nodes: Nodes | None) -> OutputPlan:
    attach = options.attach
    if attach is not None and nodes is None and not 0 <= attach < nproc:
        raise ConfigError(
            f"--attach {attach}: with {nproc} processes ranks go from 0 to {nproc - 1}", code="attach-out-of-range"
        )
    if attach is None and nodes is None and nproc == 1 and options.log_dir is None and not options.shows_ranks:
        attach = 0  # a single process gets the terminal
    return OutputPlan(log_dir=options.log_dir, tee=options.shows_ranks, attach=attach)


def _find_unless_stopped(nodes: Nodes, secret: SharedSecret, timeout_s: float, interrupts: Interrupts) -> Endpoint | None:
    """``find_endpoint``; None: a signal was received meanwhile."""
    found: list[Endpoint] = []
    errors: list[BaseException] = []

    def find() -> None:
        try:
            found.append(find_endpoint(nodes, secret, timeout_s))
        except BaseException as error:
            errors.append(error)

    # In a thread: while the main thread asks DNS, it handles no signals. And the first process of a
    # container ignores those that it does not handle.
    thread = threading.Thread(target=find, name="lockstep-names", daemon=True)
    thread.start()
    while thread.is_alive() and not interrupts.received:
        thread.join(_LOOK_S)
    if errors:
        raise errors[0]
    return found[0] if found else None


def _meet(endpoint: Endpoint) -> Callable[[LaunchSpec, ForkServer, OutputPlan, Interrupts], LaunchResult]:
    """The counterpart of ``run_workers`` for several machines."""
    # In this process alone, whose environment the workers have copied: otherwise PyTorch writes
    # pages about a lost connection.
    os.environ.update({"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ})
    introduce(endpoint)
    # It imports torch, for which a launch on one machine need not wait.
    from lockstep._launch.elastic.run import run_on_nodes

    return functools.partial(run_on_nodes, endpoint)


def unsaved_end() -> str:
    """The last words on a run that finished, but whose end could not be saved."""
    return (
        "training finished, but some of it could NOT be saved (see the warnings above). Exiting "
        f"with status {UNSAVED_END_STATUS}. To resume from the newest checkpoint: "
        f"{shlex.join(['lockstep', *sys.argv[1:]])}"
    )


def interruption(outcome: LaunchResult) -> Interruption | None:
    """What a launch without failures ended with, other than success; None: nothing."""
    by, status = outcome.stopped_by, outcome.stopped_with
    if by is None and status is None:
        return Interruption(status=UNSAVED_END_STATUS, message=unsaved_end()) if outcome.is_unsaved else None
    who = "Ctrl-C" if by is signal.SIGINT else "a signal" if by is None else by.name
    message = f"stopped by {who}; all processes of lockstep run (process {os.getpid()}) have exited"
    if status is None:
        assert by is not None
        unsaved = ". The run was NOT saved" if outcome.was_cut_short else ""
        if unsaved and outcome.joined is not None:
            unsaved += f": {outcome.joined.as_words()}"
        return Interruption(status=128 + by, message=message + unsaved)
    if status == UNSAVED_STATUS:
        return Interruption(status=status, message=f"{message} (status {status}). The run could NOT be saved")
    saved = f"Checkpoint saved. To resume: {shlex.join(['lockstep', *sys.argv[1:]])}"
    return Interruption(status=status, message=f"{message} (status {status}). {saved}")
