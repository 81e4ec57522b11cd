"""What must be the same for all launchers of a run, and the name of their launch."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch

from lockstep.base.errors import ConfigError
from lockstep.launch.elastic.connection import Connection
from lockstep.launch.nodes import Nodes

_HOST, _LAUNCH = "host", "launch"
"""What may differ."""


def terms_here(nodes: Nodes, max_restarts: int, launch: str) -> dict[str, str]:
    """The options and versions of this launcher that must be the same on all nodes; its host, and its name for the launch."""
    try:
        release = version("torch-lockstep")
    except PackageNotFoundError:  # a source tree that was never installed
        release = "of a source tree"
    return {
        "--nnodes": f"{nodes.least}:{nodes.most}" if nodes.is_elastic else str(nodes.most),
        "--rdzv-id": nodes.run_id,
        "--max-restarts": str(max_restarts),
        "node ranks": "no" if nodes.node_rank is None else "yes",
        "lockstep": release,
        "torch": torch.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        _HOST: socket.gethostname(),
        _LAUNCH: launch,
    }


def agree(connection: Connection, terms: Mapping[str, str]) -> str:
    """Check that this launcher has the same terms as the first one. Returns the name of the launch: the first one's, also after
    every restart.

    Raises:
        ConfigError: they differ.
    """
    first = connection.greeting.terms
    if connection.nodes.node_rank is None:  # runs without numbers may share a store, whose keeper is of one of them
        first = json.loads(connection.run_store.compare_set("terms", "", json.dumps(terms)).decode())
    differing = [name for name in terms if terms[name] != first.get(name) and name not in (_HOST, _LAUNCH)]
    if differing:
        why = "; ".join(f"{name} {terms[name]} here, {first.get(name)} there" for name in differing)
        raise ConfigError(
            f"this node ({terms[_HOST]}) and the first to arrive ({first[_HOST]}) differ: {why}. All nodes of a run need the "
            "same. (If the first is of another run, give each run a --rdzv-id or port of its own.)"
        )
    return first[_LAUNCH]
