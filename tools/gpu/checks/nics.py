"""The bytes that this machine's network interfaces have sent, from the kernel's counters."""

from __future__ import annotations

import contextlib
from pathlib import Path

WORD = 4
"""Bytes that ``port_xmit_data`` counts as one."""


def sent_bytes(root: Path = Path("/sys/class")) -> dict[str, int]:
    """By interface. What goes by RDMA is counted by InfiniBand's ports alone, also over Ethernet;
    an interface of several others counts what they send again."""
    sent = {}
    for path in sorted(root.glob("net/*/statistics/tx_bytes")):
        with contextlib.suppress(OSError, ValueError):  # an interface may vanish, and may not count
            sent[path.parts[-3]] = int(path.read_text())
    for path in sorted(root.glob("infiniband/*/ports/*/counters/port_xmit_data")):
        with contextlib.suppress(OSError, ValueError):
            sent[f"{path.parts[-5]} port {path.parts[-3]}"] = WORD * int(path.read_text())
    return sent
