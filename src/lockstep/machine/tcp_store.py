"""The two ends of PyTorch's TCP store, each opened with an error or a wait that can be understood."""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Callable

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lockstep.errors import PeerError


def serve(listener: socket.socket, address: str | None, timeout_s: float) -> TCPStore:
    """A store that answers at this socket, which is now its own, as long as the returned object lives.

    Whatever in this process asks PyTorch for a shared store (``multi_tenant``) of the same port gets this one.
    """
    port = listener.getsockname()[1]
    timeout = datetime.timedelta(seconds=timeout_s)
    where = address or "127.0.0.1"
    return TCPStore(where, port, None, True, timeout, False, multi_tenant=True, master_listen_fd=listener.detach())


def connect(host: str, port: int, remaining_s: Callable[[], float], pause: Callable[[str], None]) -> TCPStore:
    """A client of the store that somebody keeps there, or is yet going to.

    Args:
        host: a name or address.
        port: of the store.
        remaining_s: how many seconds are left.
        pause: called again and again, with what is wrong; it sleeps for a moment, or raises what ends the wait.

    Raises:
        PeerError: what is there is no such store.
    """
    # PyTorch's client tries again and again too, but with pages of warnings.
    while True:
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(2.0, remaining_s()))).close()
            break
        except OSError as error:
            reason = f"{host}:{port}: {error.strerror or error}"
        pause(reason)
    # It waits for ever for an answer from a program that gives none; a thread can be left alone with that.
    found: list[TCPStore | BaseException] = []

    def open_client() -> None:
        timeout = datetime.timedelta(seconds=max(1.0, remaining_s()))
        try:
            found.append(TCPStore(host, port, None, False, timeout, False))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=open_client, name="lockstep-connect", daemon=True)
    thread.start()
    while not found:
        pause(f"what listens at {host}:{port} has not answered as a run's rank 0 would")
    if isinstance(found[0], BaseException):
        raise PeerError(f"{host}:{port}: rank 0 cannot be reached: {first_line(found[0])}") from found[0]
    return found[0]


def first_line(error: object) -> str:
    """What PyTorch's errors have to say, without the stack of C++ that follows."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
