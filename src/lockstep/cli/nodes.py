"""Options of ``lockstep run`` for several machines. They are called as torchrun's are, and mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

NODE_OPTIONS = (
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_backend",
    "rdzv_conf",
)
"""Their names, in the order of the help."""


def node_options(command: F) -> F:
    """Give a click command these options."""
    for option in (
        click.option(
            "--rdzv-conf", metavar="NAME=N,...", help="Settings of torchelastic's rendezvous: see docs/clusters.md."
        ),
        click.option(
            "--rdzv-backend",
            metavar="[c10d|static]",
            help="Accepted for torchrun compatibility: c10d goes with --rdzv-endpoint, static with --node-rank and "
            "--master-addr.",
        ),
        click.option(
            "--rdzv-id", metavar="NAME", help="Name of the run, for runs that share one rendezvous endpoint. Default: none."
        ),
        click.option(
            "--rdzv-endpoint",
            metavar="HOST:PORT",
            help="Where machines without numbers meet, the same on each: one of them, and a free port of it.",
        ),
        click.option(
            "--master-port",
            type=int,
            metavar="PORT",
            help="TCP port on machine 0 where the others connect. Default: 29500; with one machine, a free one, which scripts "
            "find in MASTER_PORT.",
        ),
        click.option("--master-addr", metavar="HOST", help="Host name or IP address of machine 0, as the others reach it."),
        click.option("--node-rank", type=int, metavar="R", help="Which machine this is, from 0."),
        click.option(
            "--nnodes",
            metavar="N|MIN:MAX",
            help="Number of machines; the same command on each, but for --node-rank. With MIN:MAX they may come and go. "
            "Default: 1.",
        ),
    ):
        command = option(command)
    return command
