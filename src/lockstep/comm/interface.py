"""The network interface that processes talk over."""

from __future__ import annotations

import os
import socket

from lockstep.errors import ConfigError
from lockstep.machine.addresses import SOMEWHERE, interface_with, own_address

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"


def choose_interface(*, on_one_machine: bool, towards: str | None) -> str:
    """What Gloo listens on: GLOO_SOCKET_IFNAME if it is set; on one machine loopback, so that no port can be reached from
    another; else the interface through which this machine reaches the host ``towards``, or the others if that is here.

    Returns:
        A name, or ``auto`` where Gloo has to find one by this machine's own name.

    Raises:
        ConfigError: the variable names none of this machine.
    """
    asked = os.environ.get(GLOO_INTERFACE)
    if asked:
        here = [name for _, name in socket.if_nameindex()]
        for name in asked.split(","):
            if name not in here:
                raise ConfigError(
                    f"{GLOO_INTERFACE}={asked}: this machine has no interface {name!r}, but {', '.join(here)}. Name one "
                    "of them, or unset the variable"
                )
        return asked
    if on_one_machine:
        return "lo"
    return interface_towards(towards) or interface_towards(SOMEWHERE) or "auto"


def nccl_interface() -> str:
    """What NCCL was told to listen on, or ``auto``: it chooses by itself, and takes fast networks into account."""
    return os.environ.get(_NCCL_INTERFACE) or "auto"


def interface_towards(host: str | None) -> str | None:
    """The interface by which packets to a host would leave; None: there is no way, or only through loopback."""
    own = own_address(host) if host is not None else None
    return None if own is None else interface_with(own)
