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
        click.option("--rdzv-backend", metavar="[c10d|static]", help="Nothing more than which of the two ways it is."),
        click.option("--rdzv-id", metavar="NAME", help="Keeps runs apart that meet at one place. Default: none."),
        click.option(
            "--rdzv-endpoint",
            metavar="HOST:PORT",
            help="Where machines without numbers meet, the same on each: one of them, and a free port of it.",
        ),
        click.option(
            "--master-port",
            type=int,
            metavar="PORT",
            help="A free port of it. Default: 29500; on one machine: any, for scripts that meet through env://.",
        ),
        click.option("--master-addr", metavar="HOST", help="Machine 0, by a name or address that all others reach it by."),
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
