"""``lockstep run``: a script, on several processes of this machine, or of several."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from lockstep.cli.options import CONTEXT_OF_SCRIPTS, GroupedCommand, given, options_from
from lockstep.config import RunConfig
from lockstep.errors import ConfigError
from lockstep.launch.options import LaunchOptions
from lockstep.launch.script import run_script

_EPILOG = """\
Examples:
  lockstep run train.py --epochs 3                    a process for each GPU, or one
  lockstep run --nproc-per-node 2 train.py            two processes
  lockstep run --nproc-per-node 2 --shards 8 train.py the answer of 8 shards, on any number of processes up to 8
  lockstep run --nproc-per-node 4 --log-dir logs -m package.train
  lockstep run --nproc-per-node 2 --attach 1 train.py breakpoint() works on rank 1
  lockstep run --nproc-per-node 2 --max-restarts 3 train.py
  lockstep run --nnodes 2 --node-rank 0 --master-addr one train.py         the same on the other, with --node-rank 1
  lockstep run --nnodes 1:4 --rdzv-endpoint one:29500 --shards 8 train.py  the same on each that is there

Scripts written for torchrun or torch.distributed.launch run unchanged. (Those that meet through env:// open PyTorch's
TCP store, which listens on all network interfaces; scripts that call lockstep.join() open no port to the network.)

If a process fails, all of them are ended within seconds and the first failure is shown whole. With --max-restarts they
then start again, from the newest checkpoint of the run if the script calls lockstep.join(); not after Ctrl-C, and not
after an error that would only come again. A process that somebody stopped (kill -STOP) has failed when the others have
waited for it for half of --timeout.

SIGTERM or SIGUSR1 to this command asks a training run to make room: it ends its step, writes a checkpoint, and ends with
status 75, "start me again" (74: the checkpoint could not be written). A second signal ends it at once.

The exit status is 0 if all went well, 2 if nothing was started, 75 as above, 130 after Ctrl-C, 143 after a SIGTERM that
nothing was saved after, else that of the first failure: the status that the script exited with, 128 plus the number of
the signal that killed it, or 1.
"""


_VALUE_OF_TEE = re.compile(r"\d+(:\d+(,\d+:\d+)*)?")


@click.command(
    "run",
    cls=GroupedCommand,
    kinds=(LaunchOptions, RunConfig),
    examples=_EPILOG,
    context_settings=CONTEXT_OF_SCRIPTS,
    options_metavar="[OPTIONS]",
)
@options_from(LaunchOptions, RunConfig)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(script: str, args: tuple[str, ...], **values: Any) -> int:
    """Run SCRIPT with ARGS on several processes of this machine, or of several machines.

    Options go before SCRIPT; all that follows it is the script's own. A setting given here and, differently, in the
    script's lockstep.join() is an error.
    """
    options = LaunchOptions(**given(LaunchOptions, values))
    if options.tee:
        _check_tee(script)
    interruption = run_script(script, args, options, given(RunConfig, values))
    if interruption is None:
        return 0
    click.echo(interruption.message, err=True)
    return interruption.status


def _check_tee(script: str) -> None:
    """torchrun's ``--tee 3`` would take the 3 for the script.

    Raises:
        ConfigError: it was given.
    """
    if _VALUE_OF_TEE.fullmatch(script) and not Path(script).is_file():
        raise ConfigError(
            f"--tee {script}: here --tee takes no value, and shows both streams of all ranks. Leave {script} out"
        )
