"""Options that people bring from torchrun and torch.distributed.launch: what each means to ``lockstep run``.

(Those for several machines are in ``cli.nodes``.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from lockstep.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

_STREAMS = click.Choice(["0", "3"])  # none or both; torchrun also takes single streams and ranks
_VALUE_OF_TEE = re.compile(r"\d+(:\d+(,\d+:\d+)*)?")


def torchrun_options(command: F) -> F:
    """Give a click command these options: its arguments ``is_executable``, ``use_env``, ``redirects``, ``tee_streams``."""
    for option in (
        click.option("-t", "tee_streams", type=_STREAMS, metavar="3", help="The same as --tee."),
        click.option(
            "-r",
            "--redirects",
            type=_STREAMS,
            metavar="3",
            help="Accepted for torchrun compatibility: --log-dir, which must be given, redirects both streams.",
        ),
        click.option("--use-env", is_flag=True, help="The same as --pass-local-rank none."),
        click.option("--no-python", "is_executable", is_flag=True, help="SCRIPT is any program, not a Python script."),
        click.option(
            "--standalone",
            is_flag=True,
            expose_value=False,
            help="Accepted for torchrun compatibility; no effect: processes of one machine need no rendezvous options.",
        ),
    ):
        command = option(command)
    return command


def dashed(name: str) -> str:
    """``--nproc_per_node`` and ``--nproc-per-node`` are the same."""
    return name.replace("_", "-")


def check_tee(script: str) -> None:
    """torchrun's ``--tee 3`` would take the 3 for the script.

    Raises:
        ConfigError: it was given.
    """
    if _VALUE_OF_TEE.fullmatch(script) and not Path(script).is_file():
        raise ConfigError(
            f"--tee {script}: here --tee takes no value, and shows both streams of all ranks. Leave {script} out"
        )


def check_redirects(streams: str | None, log_dir: Path | None) -> None:
    """torchrun's ``-r 3`` is what ``--log-dir`` does by itself.

    Raises:
        ConfigError: it has no directory.
    """
    if streams == "3" and log_dir is None:
        raise ConfigError(
            "-r 3 without a directory: --log-dir DIR writes both streams of rank R to DIR/rank-R.log. Give it, or leave -r out"
        )
