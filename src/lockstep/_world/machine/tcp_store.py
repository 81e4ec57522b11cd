"""Opening servers and clients of PyTorch's TCP store, with clear errors and bounded waits."""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Callable

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lockstep._base.errors import PeerError

_ANSWER_S = 2.0
"""The time in which a store usually answers, in seconds."""


def serve(listener: socket.socket, address: str | None, timeout_s: float) -> TCPStore:
    """Starts a store on a listening socket, which it takes over, for the lifetime of the returned
    object.

    Code in this process that asks PyTorch for a shared store (``multi_tenant``) at the same port
    gets this one."""
    port = listener.getsockname()[1]
    timeout = datetime.timedelta(seconds=timeout_s)
    where = address or "127.0.0.1"
    # Without a wait for clients: until all have connected, the constructor would block without a
    # message. Instead, ranks count each other in the store, and report who is missing.
    return TCPStore(where, port, None, True, timeout, False, multi_tenant=True, master_listen_fd=listener.detach())


def connect(host: str, port: int, remaining_s: Callable[[], float], pause: Callable[[str], None]) -> TCPStore:
    """Connects a client to a store, waiting until it is started.

    Args:
        host: the store's host name or address.
        remaining_s: returns the seconds left.
        pause: called repeatedly with the current problem; it sleeps briefly, or raises an error to
            end the wait.

    Raises:
        PeerError: the port is not that of such a store.
    """
    # PyTorch's client retries too, but prints pages of warnings.
    while True:
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(2.0, remaining_s()))).close()
            break
        except OSError as error:
            reason = f"{host}:{port}: {error.strerror or error}"
        pause(reason)
    # It waits forever for another kind of server to answer, so it runs in a thread that can be
    # abandoned.
    results: list[TCPStore | BaseException] = []

    def open_client() -> None:
        timeout = datetime.timedelta(seconds=max(1.0, remaining_s()))
        try:
            results.append(TCPStore(host, port, None, False, timeout, False))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=open_client, name="lockstep-connect", daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    while not results:
        pause(f"the program at {host}:{port} does not answer as rank 0 of a run would")
        thread.join(_ANSWER_S)
    if isinstance(results[0], BaseException):
        raise PeerError(
            f"{host}:{port}: rank 0 cannot be reached: {first_line(results[0])}", code="rank-0-unreachable"
        ) from results[0]
    return results[0]


def first_line(error: object) -> str:
    """The message of a PyTorch error, without the C++ stack trace that follows it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
