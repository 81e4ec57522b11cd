"""What all launchers of a run must have alike, and the name that they give it."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep.errors import ConfigError
from lockstep.launch.nodes import Nodes

_REFUSED = "refused"


def terms_here(nodes: Nodes, max_restarts: int) -> dict[str, str]:
    """Those of this launcher."""
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
    """Make sure that this launcher has the terms of whoever came first.

    Raises:
        ConfigError: its terms differ; the launchers that wait report it as well.
    """
    mine = json.dumps({"host": socket.gethostname(), **terms})
    first = json.loads(store.compare_set("terms", "", mine).decode())
    differing = [name for name in terms if terms[name] != first.get(name)]
    host = socket.gethostname()
    if differing:
        why = "; ".join(f"{name} {terms[name]} here, {first.get(name)} there" for name in differing)
        named = ", ".join(f"{name} {terms[name]}" for name in differing)
        store.set(_REFUSED, json.dumps({"host": host, "why": f"{host} came with {named}, and was sent away"}))
        raise ConfigError(
            f"this node ({host}) and the first that came ({first['host']}) differ: {why}. All nodes of a run "
            "need the same. (If the first is of another run, give each run a --rdzv-id or port of its own.)"
        )
    if _last_refused(store).get("host") == host:
        store.set(_REFUSED, "{}")  # it has come as it should


def refused(store: Store) -> str:
    """Of a launcher that was sent away, for those who wait for it; empty: none was."""
    return _last_refused(store).get("why", "")


def _last_refused(store: Store) -> dict[str, str]:
    refusal: dict[str, str] = json.loads(store.get(_REFUSED)) if store.check([_REFUSED]) else {}
    return refusal


def launch_name(store: Store, proposal: str) -> str:
    """The name of the launch, the same on all nodes and after every restart: that of whoever came first."""
    return str(store.compare_set("launch", "", proposal).decode())
