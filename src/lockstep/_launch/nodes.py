"""The machines of a run according to the command line: how many, which of them this is, and their
rendezvous endpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lockstep._base.errors import ConfigError
from lockstep._launch.options import LaunchOptions
from lockstep._world.machine.addresses import with_port

DEFAULT_PORT = 29500
_DEFAULT_RUN = "none"
_COUNT = re.compile(r"(\d+)(?::(\d+))?")

GATHER_S = 30.0
"""Seconds for which the first rendezvous of an elastic run waits for the maximum number of
machines."""
LOST_S = 10.0
"""Seconds of silence after which a machine counts as lost, if the run can continue without it and
nothing else shows the loss (its power or link was cut, and no other machine's process has failed
because of it). If it cannot: the run's timeout."""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The machines of a run. (Each launcher counts as one: two of them on one machine are two
    nodes.)"""

    least: int
    most: int
    node_rank: int | None
    """This machine's number, from 0; None: assigned at the rendezvous."""
    host: str
    """The host of the rendezvous endpoint, as a name or address: node 0's if nodes are numbered."""
    port: int
    run_id: str

    @property
    def is_elastic(self) -> bool:
        """Whether machines may come and go."""
        return self.least < self.most

    @property
    def endpoint(self) -> str:
        """The rendezvous endpoint, for the user."""
        return with_port(self.host, self.port)

    @property
    def count(self) -> str:
        """How many machines, for the user."""
        return f"{self.least} to {self.most}" if self.is_elastic else str(self.most)


def plan_nodes(options: LaunchOptions) -> Nodes | None:
    """The machines that the options describe; None: this one alone. Pure.

    Raises:
        ConfigError: options contradict each other, or one that is needed is missing.
    """
    nnodes, node_rank, master_addr, endpoint = options.nnodes, options.node_rank, options.master_addr, options.rdzv_endpoint
    least, most = _read_count(nnodes)
    if options.rdzv_backend not in (None, "c10d", "static"):
        raise ConfigError(
            f"--rdzv-backend {options.rdzv_backend}: lockstep supports c10d (PyTorch's own store, at --rdzv-endpoint) or "
            "static (--node-rank and --master-addr)",
            code="rdzv-backend-unknown",
        )
    if options.master_port is not None and not 0 < options.master_port < 65536:
        raise ConfigError(f"--master-port {options.master_port}: ports go from 1 to 65535", code="master-port-invalid")
    if node_rank is not None and not 0 <= node_rank < most:
        raise ConfigError(
            f"--node-rank {node_rank} with --nnodes {nnodes or 1}: nodes are numbered from 0 to {most - 1}",
            code="node-rank-out-of-range",
        )
    if most == 1:
        return None
    if endpoint and (master_addr or options.master_port):
        raise ConfigError(
            f"--rdzv-endpoint {endpoint} and --master-addr or --master-port: both set the rendezvous address. Pass one of them",
            code="endpoint-set-twice",
        )
    if not endpoint and not master_addr:
        raise ConfigError(
            f"--nnodes {nnodes} needs a rendezvous address. Pass --master-addr HOST (the name or address of node 0) and "
            "--node-rank R on every machine, or --rdzv-endpoint HOST:PORT",
            code="endpoint-missing",
        )
    if least < most and (node_rank is not None or master_addr):
        asked = "--node-rank" if node_rank is not None else "--master-addr"
        raise ConfigError(
            f"{asked} with --nnodes {nnodes}: a varying number of nodes has no fixed numbers. Remove it, and "
            "pass --rdzv-endpoint HOST:PORT",
            code="elastic-nodes-numbered",
        )
    if node_rank is None and (master_addr or options.rdzv_backend == "static"):
        raise ConfigError(f"--node-rank is missing: pass this node's number, from 0 to {most - 1}", code="node-rank-missing")
    host, port = _read_endpoint(endpoint) if endpoint else (str(master_addr), options.master_port or DEFAULT_PORT)
    return Nodes(
        least=least,
        most=most,
        node_rank=node_rank,
        host=host,
        port=port,
        run_id=options.rdzv_id or _DEFAULT_RUN,
    )


def _read_count(text: str | None) -> tuple[int, int]:
    match = _COUNT.fullmatch(text or "1")
    if match:
        least, most = int(match[1]), int(match[2] or match[1])
        if 1 <= least <= most:
            return least, most
    raise ConfigError(
        f"--nnodes {text}: pass a number of machines, 1 or more, or MIN:MAX if machines may join and leave",
        code="nnodes-invalid",
    )


def _read_endpoint(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"--rdzv-endpoint {text}: pass HOST:PORT, a machine of the run and a free port of it, from 1 to 65535, the same on "
            "every node",
            code="rdzv-endpoint-invalid",
        )
    return host, int(port)
