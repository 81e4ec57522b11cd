"""Several machines, as the command line says it: how many, which of them this is, and their rendezvous endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lockstep.errors import ConfigError
from lockstep.machine.addresses import is_loopback

DEFAULT_PORT = 29500
_DEFAULT_RUN = "none"
_COUNT = re.compile(r"(\d+)(?::(\d+))?")

QUICK = MappingProxyType({"last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 5})
"""What lockstep sets of torchelastic's rendezvous, whose own values make a run wait for three quarters of a minute when a
machine is lost: for how many seconds more it waits for machines once there are enough; how often, in seconds, each says that
it is alive; and after how many times that it did not it is taken for lost."""
GATHER_S = 30.0
"""For how long a run that could begin with fewer waits for the most machines that it can have. Later it does not."""
LOST_S = 10.0
"""Seconds of silence after which a machine counts as lost, if the run can continue without it and nothing else shows the loss
(its power or link was cut, and no other machine's process has failed because of it). If it cannot: the run's timeout."""
CONF = ("join_timeout", "last_call_timeout", "close_timeout", "keep_alive_interval", "keep_alive_max_attempt")
"""What may be set of torchelastic's rendezvous."""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The machines of a run. (A launcher stands for one: two of them on one machine are two nodes.)"""

    least: int
    most: int
    node_rank: int | None
    """Which one this is, from 0; None: they are numbered when they have met."""
    host: str
    """Their rendezvous endpoint: a name or address, of node 0 if they have numbers."""
    port: int
    run_id: str
    conf: Mapping[str, int]
    """Of torchelastic's rendezvous."""

    @property
    def is_elastic(self) -> bool:
        """Whether machines may come and go."""
        return self.least < self.most

    @property
    def endpoint(self) -> str:
        """The rendezvous endpoint, for the user."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def caution(self) -> str:
        """What a user should know besides, who waits there for nothing: with a space before it, or empty."""
        means = f" {self.host} means each machine itself: nodes on other machines need an address that they can reach."
        return means if is_loopback(self.host) else ""

    @property
    def count(self) -> str:
        """How many they are, for the user."""
        return f"{self.least} to {self.most}" if self.is_elastic else str(self.most)


def plan_nodes(
    *,
    nnodes: str | None = None,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    endpoint: str | None = None,
    run_id: str | None = None,
    backend: str | None = None,
    conf: str | None = None,
) -> Nodes | None:
    """What the options mean, all of which may be left out; None: this machine alone. Pure.

    Raises:
        ConfigError: they contradict each other, or one that is needed is missing.
    """
    least, most = _read_count(nnodes)
    if backend not in (None, "c10d", "static"):
        raise ConfigError(
            f"--rdzv-backend {backend}: lockstep meets through c10d (PyTorch's own store, at --rdzv-endpoint) or static "
            "(--node-rank and --master-addr)"
        )
    if master_port is not None and not 0 < master_port < 65536:
        raise ConfigError(f"--master-port {master_port}: ports go from 1 to 65535")
    if node_rank is not None and not 0 <= node_rank < most:
        raise ConfigError(f"--node-rank {node_rank} with --nnodes {nnodes or 1}: nodes are numbered from 0 to {most - 1}")
    if most == 1:
        return None
    if endpoint and (master_addr or master_port):
        raise ConfigError(
            f"--rdzv-endpoint {endpoint} and --master-addr or --master-port: both give the rendezvous endpoint, give one"
        )
    if not endpoint and not master_addr:
        raise ConfigError(
            f"--nnodes {nnodes}: where is their rendezvous? Give every node --master-addr HOST, the name or address of node 0, "
            "and --node-rank R; or, for nodes without numbers, --rdzv-endpoint HOST:PORT"
        )
    if least < most and (node_rank is not None or master_addr):
        asked = "--node-rank" if node_rank is not None else "--master-addr"
        raise ConfigError(
            f"{asked} with --nnodes {nnodes}: where nodes come and go they have no numbers. Leave it out, and "
            "give --rdzv-endpoint HOST:PORT"
        )
    if node_rank is None and (master_addr or backend == "static"):
        raise ConfigError(f"--node-rank is missing: which of the {most} nodes is this, from 0 to {most - 1}?")
    host, port = _read_endpoint(endpoint) if endpoint else (str(master_addr), master_port or DEFAULT_PORT)
    return Nodes(
        least=least,
        most=most,
        node_rank=node_rank,
        host=host,
        port=port,
        run_id=run_id or _DEFAULT_RUN,
        conf=MappingProxyType({**QUICK, **_read_conf(conf)}),
    )


def _read_count(text: str | None) -> tuple[int, int]:
    match = _COUNT.fullmatch(text or "1")
    if match:
        least, most = int(match[1]), int(match[2] or match[1])
        if 1 <= least <= most:
            return least, most
    raise ConfigError(f"--nnodes {text}: give a number of machines, 1 or more, or MIN:MAX where they may come and go")


def _read_endpoint(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"--rdzv-endpoint {text}: give HOST:PORT, a machine of the run and a free port of it, from 1 to 65535, the same on "
            "every node"
        )
    return host, int(port)


def _read_conf(text: str | None) -> dict[str, int]:
    options = {}
    for part in (text or "").split(","):
        name, _, value = part.strip().partition("=")
        if not name:
            continue
        if name not in CONF:
            raise ConfigError(f"--rdzv-conf {part}: there is no such setting here, but {', '.join(CONF)}")
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"--rdzv-conf {part}: give a whole number, 1 or more")
        options[name] = int(value)
    return options
