"""Whether the processes at the other ends of a group's connections belong to the run.

Gloo has no password: whoever connects to a rank's port first is taken for the rank that is expected there. So after a group has
opened, and before anything that its members send is trusted,

- every rank proves that it holds the run's secret: each sends a random number, and then a code over all of them and its own
  rank (HMAC, RFC 2104, with SHA-256), which is of no use to others, nor a second time;
- of each new connection whose other end is on this machine, that end must belong to this user. (Somebody in the middle could
  pass on the proofs of others.)
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep.base.errors import LockstepError, PeerError, StrangerError
from lockstep.world.environment import read_secret

_BYTES = hashlib.sha256().digest_size
_ESTABLISHED = "01"
_FILES = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp6"}


@dataclass(frozen=True)
class _Connection:
    """A row of ``/proc/net/tcp``, with addresses as they stand there."""

    local: str
    remote: str
    user: int
    inode: int


def ranks_key(store: Store) -> bytes:
    """The key of a run's ranks: LOCKSTEP_SECRET, or one made for them, which travels through their store and is as secret as
    that. Every rank must call it; it blocks until one has made it.

    Args:
        store: of this run, with a prefix for this process group.
    """
    if (given := read_secret()) is not None:
        return given.encode()
    made: bytes = store.compare_set("key", "", secrets.token_hex(_BYTES))
    return made


class NewConnections:
    """The TCP connections that this process opens from now on."""

    def __init__(self) -> None:
        self._before = _own_sockets()

    def check_users(self) -> None:
        """Check that the other ends on this machine belong to this user. Local; nothing is checked where the system does not
        tell.

        Raises:
            StrangerError: one belongs to somebody else.
        """
        new = {inode: name for inode, name in _own_sockets().items() if inode not in self._before}
        # The kernel walks a large table for each of these files, whatever there is in it: milliseconds.
        established = [row for name in sorted({*new.values()}) for row in _connections(name)]
        ends = {(row.local, row.remote): row for row in established}
        for row in established:
            peer = ends.get((row.remote, row.local))
            # (A connection that its listener has not accepted yet has no inode, and no user.)
            if row.inode in new and peer is not None and peer.inode and peer.user != os.geteuid():
                raise StrangerError(
                    f"a process of another user of this machine (user id {peer.user}) has connected to this run in place of "
                    "one of its ranks. Nothing that it sent was used, and the run ends. Tell the administrator of this "
                    "machine, then start again"
                )


def recognise(key: bytes, group: dist.ProcessGroup, connections: NewConnections) -> None:
    """Check that the other members of a new group belong to the run. Every rank of the group must call it; it blocks until all
    have.

    Raises:
        StrangerError: one does not.
        PeerError: a connection ended meanwhile.
    """
    if dist.get_world_size(group) == 1:
        return  # there is no connection
    connections.check_users()  # of those that are accepted by now: somebody who sends nonsense is named as what he is
    try:
        _prove(key, group)
    except RuntimeError as error:
        if isinstance(error, LockstepError):
            raise
        connections.check_users()
        raise PeerError(
            f"the ranks could not prove to each other that they belong to this run ({str(error).partition(chr(10))[0]}): "
            "either another rank ended in the meantime, and its error is the cause; or somebody else's program connected in "
            "place of a rank, and nothing that it sent was used"
        ) from error
    connections.check_users()


def _prove(key: bytes, group: dist.ProcessGroup) -> None:
    """Prove to the other ranks of a group that this one holds the run's secret, and check that they do.

    Raises:
        StrangerError: a rank does not hold the secret.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    numbers = _gather(secrets.token_bytes(_BYTES), size, group)
    codes = _gather(_code(key, rank, numbers), size, group)
    strangers = [str(peer) for peer, code in enumerate(codes) if not hmac.compare_digest(code, _code(key, peer, numbers))]
    if strangers:
        raise StrangerError(
            f"what answered in place of rank {' and '.join(strangers)} does not hold the secret of this run: it is somebody "
            "else's program, or a rank with a different LOCKSTEP_SECRET. Nothing that it sent was used. Give all ranks the "
            "same LOCKSTEP_SECRET, or none; if they have, somebody else reaches the ports of this run"
        )


def _code(key: bytes, rank: int, numbers: list[bytes]) -> bytes:
    return hmac.new(key, b"".join([b"rank", rank.to_bytes(8, "big"), *numbers]), hashlib.sha256).digest()


def _gather(mine: bytes, size: int, group: dist.ProcessGroup) -> list[bytes]:
    rows = list(torch.empty(size, _BYTES, dtype=torch.uint8).unbind())
    dist.all_gather(rows, torch.frombuffer(bytearray(mine), dtype=torch.uint8), group=group)
    return [row.numpy().tobytes() for row in rows]


def _own_sockets() -> dict[int, str]:
    """This process's TCP sockets: the inode of each, and which file of ``/proc/net`` lists it."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the directory's own descriptor is closed again
            if not stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                if one.type == socket.SOCK_STREAM and one.family in _FILES:
                    found[os.fstat(one.fileno()).st_ino] = _FILES[one.family]
    return found


def _connections(name: str) -> Iterator[_Connection]:
    """The established connections that this file of ``/proc/net`` lists, also of other users."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _ESTABLISHED:
                yield _Connection(fields[1], fields[2], int(fields[7]), int(fields[9]))
