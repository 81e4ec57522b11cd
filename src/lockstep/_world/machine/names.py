"""Host names that do not resolve yet.

The name of a pod resolves only some time after the pod was scheduled: its record must be written,
and resolvers remember for seconds that there was none. After a pod was replaced, its name means the
old address for as long. So a rendezvous waits for names, as torchrun does. What can never resolve,
on any machine and at any time, is an error immediately."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable

from lockstep._base.stopping import say
from lockstep._world.machine.addresses import addresses_of

PATIENCE_S = 60.0
"""The longest wait for a name, in seconds: records of cluster DNS live for 5 to 30 s."""
_PAUSE_S = 0.5
_LABEL = re.compile(r"(?!-)[\w-]{1,63}(?<!-)")
"""One part of a host name. ``\\w`` covers underscores, which DNS allows, and letters of any
script."""
_LONGEST = 253


class NoSuchNameError(OSError):
    """A host name does not resolve, and waiting longer does not help."""


def is_address(host: str) -> bool:
    """Whether a host is an address, and not a name whose meaning may change."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def never_resolves(host: str) -> str | None:
    """Why waiting cannot help a host that does not resolve, as a clause for the user; None: it may.

    Pure, so that a typing error does not cost a minute where it is plain.
    """
    if is_address(host):
        return None
    if "://" in host:
        return "it is a URL, and a host name is expected"
    if ":" in host:
        return "it contains a colon, and is no IPv6 address"
    labels = host.removesuffix(".").split(".")
    if len(host) > _LONGEST or not all(_LABEL.fullmatch(label) for label in labels):
        return "it is not a valid host name"
    if labels[-1].isdecimal():
        return "it is not a valid IPv4 address"
    if labels[-1].lower() == "invalid":  # RFC 6761
        return "names in .invalid never resolve"
    return None


def resolve(
    host: str,
    *,
    timeout_s: float = PATIENCE_S,
    pause: Callable[[float], None] = time.sleep,
    is_wanted: Callable[[list[str]], bool] | None = None,
    wanted: str = "",
) -> list[str]:
    """The addresses of a host, as ``addresses_of``, after waiting for its name if necessary. Prints
    for what it waits, once.

    Args:
        timeout_s: how long to wait, at most ``PATIENCE_S``.
        pause: sleeps; an error that it raises ends the wait.
        is_wanted: whether these are addresses that the name should have; None: any are.
        wanted: for the message, what the name should have.

    Returns:
        The last addresses that were found, also if none of them is wanted.

    Raises:
        NoSuchNameError: the name does not resolve.
    """
    limit_s = min(PATIENCE_S, timeout_s)
    deadline, has_told = time.monotonic() + limit_s, False
    while True:
        addresses, error = _look_up(host)
        # Only after the lookup: a system's files may have names that DNS does not allow.
        if not addresses and (why := never_resolves(host)) is not None:
            raise NoSuchNameError(why)
        # An address means the same at all times, so there is nothing to wait for.
        is_over = is_address(host) or time.monotonic() >= deadline
        if addresses and (is_over or is_wanted is None or is_wanted(addresses)):
            return addresses
        if not addresses and is_over:
            raise NoSuchNameError(str(error))
        if not has_told:
            has_told = True
            state = (
                f"which means {', '.join(addresses)} here, {wanted}" if addresses else f"which does not resolve ({error})"
            )
            say(f"waiting for the host name {host!r}, {state}: up to {limit_s:g} s")
        pause(min(_PAUSE_S, max(0.0, deadline - time.monotonic())))


def _look_up(host: str) -> tuple[list[str], str]:
    """The addresses, or the system's reason why there are none."""
    try:
        return addresses_of(host), ""
    except OSError as error:
        return [], error.strerror or str(error)
    except UnicodeError as error:  # not a name in international letters, either
        raise NoSuchNameError(f"it is not a valid host name ({error})") from error
