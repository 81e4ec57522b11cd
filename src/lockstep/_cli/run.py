"""``lockstep run``: run a script on several processes, on one or several machines."""

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
      one process per GPU, or a single one
  lockstep run --nproc-per-node 2 train.py
      two processes; the same answer on any number up to the shards
  lockstep run --nproc-per-node 4 --log-dir logs -m package.train
      a module, with the output of each rank in a file
  lockstep run --nproc-per-node 2 --attach 1 train.py
      with breakpoint() on rank 1
  lockstep run --nproc-per-node 2 --max-restarts 3 train.py
      restarted up to three times after a failure
  lockstep run --nnodes 2 --node-rank 0 --master-addr host0 train.py
      on host0; on the other machine, with --node-rank 1
  lockstep run --nnodes 1:4 --rdzv-endpoint host0:29500 train.py
      the same on each of up to four machines
  lockstep run --config run.toml train.py
      options from a file, such as nproc-per-node = 2

Scripts written for torchrun or torch.distributed.launch run unchanged. (With init_method env:// they open PyTorch's TCP
store, which listens on all network interfaces; on one machine, scripts that call lockstep.join() open no port to the
network.)

If a process fails, all of them are stopped within seconds and the first failure is shown: its message, and the frames of
your own code (LOCKSTEP_TRACEBACK=full: the whole traceback). With --max-restarts they are then restarted, from the newest
checkpoint of the run if the script calls lockstep.join(); not after Ctrl-C, nor after an error that would recur. A process
that was suspended (kill -STOP) counts as failed once the others have waited for it for --timeout.

SIGTERM or SIGUSR1 to this command preempts a training run: it finishes its step, saves a checkpoint, and exits with
status 75, "start me again" (74: the checkpoint could not be saved). Ctrl-C does the same, with status 130. A second signal
ends it at once.

Exit status: 0 on success; 2 if nothing was started; 73 if the end of the training could not be saved; 74 or 75 as above;
76 if --audit found a wrong result; 130 after Ctrl-C; 143 after a SIGTERM if nothing was saved; else that of the first
failure: the exit status of the script, 128 plus the number of the signal that killed it, or 1.
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
    """Run SCRIPT with ARGS on several processes, on one or several machines.

    Options go before SCRIPT; all arguments after it (or after a following --) are passed to the
    script. It is an error to give a setting here and a different value in the script's
    lockstep.join().
    """
    options, settings = LaunchOptions(**given(LaunchOptions, values)), given_settings(values)
    interruption = run_script(script, args, options, settings)
    if interruption is None:
        return 0
    echo(interruption.message, err=True)
    return interruption.status
