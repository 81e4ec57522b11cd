"""What must be the same for all launchers of a run, and the name of their launch."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep.base.errors import ConfigError
from lockstep.launch.nodes import Nodes


def terms_here(nodes: Nodes, max_restarts: int) -> dict[str, str]:
    """The options and versions of this launcher that must be the same on all nodes."""
    try:
        release = version("torch-lockstep")
    except PackageNotFoundError:  # a source tree that was never installed
        release = "of a source tree"
    return {
        "--nnodes": f"{nodes.least}:{nodes.most}" if nodes.is_elastic else str(nodes.most),
        "--max-restarts": str(max_restarts),
        "node ranks": "no" if nodes.node_rank is None else "yes",
        "lockstep": release,
        "torch": torch.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def agree(store: Store, terms: Mapping[str, str]) -> None:
    """Check that this launcher has the same terms as the first one.

    Raises:
        ConfigError: they differ.
    """
    host = socket.gethostname()
    first = json.loads(store.compare_set("terms", "", json.dumps({"host": host, **terms})).decode())
    differing = [name for name in terms if terms[name] != first.get(name)]
    if differing:
        why = "; ".join(f"{name} {terms[name]} here, {first.get(name)} there" for name in differing)
        raise ConfigError(
            f"this node ({host}) and the first to arrive ({first['host']}) differ: {why}. All nodes of a run need the same. "
            "(If the first is of another run, give each run a --rdzv-id or port of its own.)"
        )


def launch_name(store: Store, proposal: str) -> str:
    """The name of the launch, the same on all nodes and after every restart: the first launcher's proposal."""
    return str(store.compare_set("launch", "", proposal).decode())
