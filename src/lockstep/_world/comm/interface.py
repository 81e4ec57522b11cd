"""Choosing the network interface for communication between processes."""

from __future__ import annotations

import os

from lockstep._world.machine.addresses import SOMEWHERE, interface_with, source_address

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"


def choose_interface(*, on_one_machine: bool, towards: str | None) -> str:
    """The interface for Gloo: GLOO_SOCKET_IFNAME if set; on one machine loopback, so that no port
    can be reached from another; otherwise the interface by which this machine reaches the host
    ``towards``, or other hosts if that is this machine.

    Returns:
        Its name, or ``auto`` if Gloo must choose one by this machine's host name.
    """
    requested = os.environ.get(GLOO_INTERFACE)
    if requested:
        return requested
    if on_one_machine:
        return "lo"
    return interface_towards(towards) or interface_towards(SOMEWHERE) or "auto"


def nccl_interface() -> str:
    """The interface set for NCCL, or ``auto``: NCCL chooses, preferring fast networks."""
    return os.environ.get(_NCCL_INTERFACE) or "auto"


def interface_towards(host: str | None) -> str | None:
    """The interface by which packets to a host leave this machine; None: there is no route, or only
    loopback."""
    address = source_address(host) if host is not None else None
    return None if address is None else interface_with(address)
