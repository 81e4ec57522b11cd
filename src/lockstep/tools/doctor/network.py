"""Checks of this machine's network: host name, ports and interface."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from lockstep.base.errors import ConfigError
from lockstep.tools.doctor.finding import Finding, Situation, fail, ok, warn
from lockstep.world.comm.interface import choose_interface
from lockstep.world.machine.addresses import addresses_of, is_loopback

_RESOLVE_S = 2.0
_SLOW_S = 1.0
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FEW_PORTS, _LEAST_PORTS = 2000, 50
_SLOW_MBIT = 1000
_SETS_NAME = "put it into /etc/hosts or DNS, with an address that the other machines reach"


def resolve(name: str) -> tuple[list[str], str]:
    """The addresses of a host, and why its name does not resolve (empty: it does). Takes at most ``_RESOLVE_S``."""
    addresses, error = list[str](), [f"no answer within {_RESOLVE_S:g} s"]

    def ask() -> None:
        try:
            addresses.extend(addresses_of(name))
            error[0] = ""
        except OSError as raised:
            error[0] = str(raised)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_RESOLVE_S)
    return list(addresses), error[0]


def own_addresses() -> list[str]:
    """All addresses of this machine."""
    return [entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries]


def look_at_name(situation: Situation) -> dict[str, Any]:
    """What this machine's name and the rendezvous host's resolve to here."""
    name = socket.gethostname()
    addresses, error = resolve(name)
    endpoint = situation.nodes.host if situation.nodes else None
    return {
        "name": name,
        "addresses": addresses,
        "error": error,
        "local": own_addresses(),
        "endpoint": endpoint,
        "endpoint_error": resolve(endpoint)[1] if endpoint else "",
        "has_several_hosts": situation.has_several_hosts,
    }


def judge_name(
    *,
    name: str,
    addresses: Sequence[str],
    error: str,
    local: Sequence[str],
    endpoint: str | None,
    endpoint_error: str,
    has_several_hosts: bool,
) -> Finding:
    """Whether the name resolves to an address of this machine, which a single machine does not need."""
    verdict = fail if has_several_hosts else warn
    if endpoint_error:
        return fail(f"{endpoint}, the rendezvous endpoint, does not resolve here: {endpoint_error}", _SETS_NAME)
    if error:
        return verdict(f"{name} does not resolve here: {error}; Gloo and PyTorch's store look it up", _SETS_NAME)
    foreign = [address for address in addresses if address not in local and not is_loopback(address)]
    if foreign:
        return verdict(f"{name} resolves to {foreign[0]}, which is no address of this machine", f"correct it: {_SETS_NAME}")
    if has_several_hosts and all(map(is_loopback, addresses)):
        return warn(f"{name} resolves to {addresses[0]} here, which others cannot reach", f"remove that line: {_SETS_NAME}")
    return ok(f"{name} is {', '.join(addresses)}")


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


def look_at_interface(situation: Situation) -> dict[str, Any]:
    """The interface that Gloo will listen on."""
    name, error = "", ""
    towards = situation.nodes.host if situation.nodes else None
    try:
        name = choose_interface(on_one_machine=not situation.has_several_hosts, towards=towards)
    except ConfigError as raised:
        error = str(raised)
    stats = psutil.net_if_stats().get(name.partition(",")[0])
    return {
        "name": name,
        "error": error,
        "is_up": None if stats is None else stats.isup,
        "speed_mbit": stats.speed if stats is not None else 0,
        "has_several_hosts": situation.has_several_hosts,
    }


def judge_interface(*, name: str, error: str, is_up: bool | None, speed_mbit: int, has_several_hosts: bool) -> Finding:
    """Whether it exists, is up, and is fast enough for gradients. ``speed_mbit``: 0: unknown."""
    if error:
        found, _, remedy = error.rpartition(". ")
        return fail(found, remedy)
    if name == "auto":
        return warn(
            "no route leads to other machines: Gloo takes the interface of this machine's name",
            "set GLOO_SOCKET_IFNAME, or see `ip route`",
        )
    if is_up is False:
        return fail(f"{name} is down", f"ip link set {name} up, or name another in GLOO_SOCKET_IFNAME")
    if has_several_hosts and 0 < speed_mbit < _SLOW_MBIT:
        return warn(
            f"{name} has {speed_mbit} Mbit/s: gradients of 100 MB take {1600 / speed_mbit:.0f} s a step",
            "a faster one in GLOO_SOCKET_IFNAME, or check its cable and switch",
        )
    speed = f", {speed_mbit / 1000:g} Gbit/s" if speed_mbit > 0 else ""
    return ok(f"{name}{speed}" if has_several_hosts else f"{name}: no port is open to the network")


def judge_names(unknown: Sequence[tuple[str, str, str]]) -> Finding:
    """Whether each host can resolve the others' names. ``unknown``: the host, the name it cannot resolve, and why."""
    if not unknown:
        return ok("each host knows the others by name")
    who, whom, why = unknown[0]
    more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    return fail(f"{who} does not know {whom}: {why}{more}", _SETS_NAME)


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text().splitlines()[1:]
    return []
