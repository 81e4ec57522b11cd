"""The check of the TCP port of the rendezvous."""

from __future__ import annotations

import socket
from typing import Any

from lockstep.tools.doctor.finding import Finding, Situation, fail, ok, warn


def look_at_ports(situation: Situation) -> dict[str, Any]:
    """Whether the rendezvous port is free, if it is given, and on this machine."""
    port, error = situation.master_port, ""
    if situation.nodes is not None:
        port = situation.nodes.port if situation.nodes.node_rank in (0, None) else None
    if port is not None:
        try:
            with socket.socket() as holder:
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                holder.bind(("", port))
        except OSError as raised:
            error = raised.strerror or str(raised)
    # Without --node-rank, one of the machines serves the port; another program may have it on the others.
    return {"port": port, "error": error, "is_ours": situation.nodes is None or situation.nodes.node_rank == 0}


def judge_ports(*, port: int | None, error: str, is_ours: bool) -> Finding:
    """Whether the rendezvous port is free."""
    if error:
        return (fail if is_ours else warn)(
            f"port {port} is not available: {error}", f"end what has it (ss -ltnp | grep {port}), or give another port"
        )
    return ok("free ones are chosen" if port is None else f"{port} is free")
