"""``lockstep run``: run a training script on one or more processes and machines."""

from __future__ import annotations

from typing import Any

import click

from lockstep._base.config import all_settings, setting_kinds
from lockstep._base.option import GROUPS, options_of
from lockstep._cli.config_file import config_option
from lockstep._cli.echo import echo
from lockstep._cli.options import CONTEXT_OF_SCRIPTS, GroupedCommand, args_of_script, given, given_settings, options_from
from lockstep._launch.options import LaunchOptions
from lockstep._launch.script import run_script

_EPILOG = """
\b
Examples:
  lockstep run train.py --epochs 3
      one process per GPU, or one process without GPUs
  lockstep run --nproc-per-node 2 train.py
      two processes; the same result on any number up to the shards
  lockstep run --nproc-per-node 4 --log-dir logs -m package.train
      a module; the output of each rank goes to a separate file
  lockstep run --nproc-per-node 2 --attach 1 train.py
      breakpoint() works on rank 1
  lockstep run --nproc-per-node 2 --max-restarts 3 train.py
      restart up to three times after a failure
  lockstep run --nnodes 2 --node-rank 0 --master-addr host0 train.py
      on host0; use --node-rank 1 on the other machine
  lockstep run --nnodes 1:4 --rdzv-endpoint host0:29500 train.py
      one to four machines, which may join and leave; same command on each
  lockstep run --config run.toml train.py
      options from a file, such as nproc-per-node = 2

Failures: if a process fails, all processes are stopped and the first error is shown, with the frames of your own code (all
frames with LOCKSTEP_TRACEBACK=full). With --max-restarts, all processes restart, from the newest checkpoint if the script
calls lockstep.join(). They do not restart after Ctrl-C, or after an error that would recur. A suspended process (kill -STOP)
counts as failed once the others have waited for it for --timeout.

Signals: SIGTERM and SIGUSR1 finish the step, save a checkpoint, and exit with status 75. Ctrl-C does the same with status
130. A second signal exits immediately.

\b
Exit status:
  0    success
  2    nothing was started
  73   training finished, but its end could not be saved
  74   stopped by a signal; the checkpoint could not be saved
  75   stopped by a signal; saved. Repeat the command to resume
  76   --audit found a wrong result
  129  stopped because the terminal was closed (SIGHUP); nothing was saved
  130  stopped by Ctrl-C
  138, 143
       stopped by SIGUSR1 or SIGTERM; nothing was saved
  other: the exit status of the first failed process (the script's,
       128 + the signal that killed it, or 1)

Scripts written for torchrun or torch.distributed.launch run unchanged. With init_method env://, they open PyTorch's TCP
store, which listens on all network interfaces. On one machine, scripts that call lockstep.join() open no port to the
network.
"""
_OPTIONS = {**options_of(LaunchOptions), **all_settings()}
_COMMON = (
    *("nproc_per_node", "is_module", "max_restarts", "threads", "device"),
    *("nnodes", "node_rank", "master_addr", "rdzv_endpoint"),
    *("strategy", "precision", "shards", "accumulate", "seed", "run_dir", "progress", "track", "workers"),
    *("checkpoint_every", "fresh", "log_dir"),
)


@click.command(
    "run",
    cls=GroupedCommand,
    headings={group: [name for name in _OPTIONS if _OPTIONS[name].group == group] for group in GROUPS} | {"Other": None},
    common=_COMMON,
    epilog=_EPILOG,
    context_settings=CONTEXT_OF_SCRIPTS,
    options_metavar="[OPTIONS]",
)
@options_from(LaunchOptions, *setting_kinds())
@config_option
@click.argument("script", metavar="SCRIPT")
@args_of_script
def command(script: str, args: tuple[str, ...], **values: Any) -> int:
    """Run a training script on one or more processes and machines.

    Put options before SCRIPT. All arguments after SCRIPT (or after --) are passed to the script. To
    resume an interrupted run, repeat the command."""
    options, settings = LaunchOptions(**given(LaunchOptions, values)), given_settings(values)
    interruption = run_script(script, args, options, settings)
    if interruption is None:
        return 0
    echo(interruption.message, err=True)
    return interruption.status
