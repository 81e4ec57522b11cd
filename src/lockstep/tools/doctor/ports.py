"""The check of TCP ports."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

from lockstep.tools.doctor.finding import Finding, Situation, fail, ok, warn

_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FEW_PORTS, _LEAST_PORTS = 2000, 50


def look_at_ports(situation: Situation) -> dict[str, Any]:
    """Whether the rendezvous port is free, if it is on this machine, and how many ports are left for connections."""
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
    first, last = map(int, _PORTS.read_text().split())
    lines = [line for name in ("tcp", "tcp6") for line in _lines(Path(f"/proc/net/{name}"))]
    used = {int(line.split()[1].rpartition(":")[2], 16) for line in lines}
    return {
        "port": port,
        "error": error,
        # Without --node-rank, one of the machines serves the port; another program may have it on the others.
        "is_ours": situation.nodes is None or situation.nodes.node_rank == 0,
        "first": first,
        "last": last,
        "num_free": sum(number not in used for number in range(first, last + 1)),
        "num_processes": situation.num_processes,
    }


def judge_ports(
    *, port: int | None, error: str, is_ours: bool, first: int, last: int, num_free: int, num_processes: int
) -> Finding:
    """Whether there are free ports for the rendezvous and for connections."""
    if error:
        return (fail if is_ours else warn)(
            f"port {port} is not available: {error}", f"end what has it (ss -ltnp | grep {port}), or give another port"
        )
    found = f"{num_free:,} of ports {first} to {last} are free"
    wider = 'sysctl -w net.ipv4.ip_local_port_range="32768 60999", or end what holds so many connections'
    if num_free < _LEAST_PORTS + 4 * num_processes:
        return fail(f"{found}: connections between processes will fail", wider)
    if num_free < _FEW_PORTS:
        return warn(found, wider)
    return ok(found if port is None else f"{port} is free, and {found}")


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text().splitlines()[1:]
    return []
