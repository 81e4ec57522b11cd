"""PyTorch's store at MASTER_PORT, for scripts that are only clients of it: torchrun's agent serves them one.

Here rank 0's worker does, on loopback, where the source tells that nobody else would (``Source.store_client``): all other
scripts may open a store of their own there.
"""

from __future__ import annotations

import socket

from torch.distributed import TCPStore  # type: ignore[attr-defined]

_served: list[TCPStore] = []
"""Kept until the process ends."""


def serve_store(port: int) -> None:
    """Serve a store at a port of the loopback interface; does not block."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # beside the launcher's socket, which reserves the port
    listener.bind(("127.0.0.1", port))
    listener.listen()
    _served.append(TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()))
