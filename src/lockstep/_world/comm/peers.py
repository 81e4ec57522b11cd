"""Whether the processes at the other ends of a group's connections belong to the run.

Gloo has no password: the first program that connects to a rank's port is taken for the rank that is
expected there. So after a group has opened, and before anything that its members send is trusted,
every rank shows that it has the run's secret: each sends a random number, and then a code over all
of them and its own rank (HMAC, RFC 2104, with SHA-256), which is of no use to others, nor a second
time. (A program in the middle could pass on the codes of others.)"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep._base.errors import LockstepError, PeerError, StrangerError
from lockstep._world.environment import read_secret

_BYTES = hashlib.sha256().digest_size


def ranks_key(store: Store) -> bytes:
    """The key of a run's ranks: LOCKSTEP_SECRET, or one made for them, which travels through their
    store and is as secret as that. Every rank must call it; it blocks until one has made it.

    Args:
        store: of this run, with a prefix for this process group.
    """
    if (given := read_secret()) is not None:
        return given.encode()
    # An empty expectation writes only if there is no such entry: the first rank's key is the one
    # that all get.
    made: bytes = store.compare_set("key", "", secrets.token_hex(_BYTES))
    return made


def recognise(key: bytes, group: dist.ProcessGroup) -> None:
    """Checks that the other members of a new group belong to the run. Every rank of the group must
    call it; it blocks until all have.

    Raises:
        StrangerError: one does not.
        PeerError: a connection ended meanwhile.
    """
    if dist.get_world_size(group) == 1:
        return  # there is no connection
    try:
        _prove(key, group)
    except RuntimeError as error:
        if isinstance(error, LockstepError):
            raise
        raise PeerError(
            "the ranks could not verify that they belong to one run "
            f"({str(error).partition(chr(10))[0]}). Either another rank exited (see its error), or "
            "another program connected instead of a rank. Nothing that it sent was used",
            code="peers-unverified",
        ) from error


def _prove(key: bytes, group: dist.ProcessGroup) -> None:
    """Shows to the other ranks of a group that this rank has the run's secret, and checks that they
    do.

    Raises:
        StrangerError: a rank does not have the secret.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    # Two exchanges, since a code must cover the numbers of all ranks: this rank's number is new, so
    # no code that was recorded in an earlier run fits it.
    numbers = _gather(secrets.token_bytes(_BYTES), size, group)
    codes = _gather(_code(key, rank, numbers), size, group)
    strangers = [str(peer) for peer, code in enumerate(codes) if not hmac.compare_digest(code, _code(key, peer, numbers))]
    if strangers:
        raise StrangerError(
            "another program, or a rank with a different LOCKSTEP_SECRET, answered instead of rank "
            f"{' and '.join(strangers)}. Nothing that it sent was used. Give all ranks the same "
            "LOCKSTEP_SECRET, or none. If they have it, restrict the ports of this run to its "
            "machines",
            code="stranger-answered",
        )


def _code(key: bytes, rank: int, numbers: list[bytes]) -> bytes:
    # With the rank: otherwise a stranger could return the code that another rank has sent. The rank
    # and each number have a fixed length, so no two messages join into the same bytes.
    return hmac.new(key, b"".join([b"rank", rank.to_bytes(8, "big"), *numbers]), hashlib.sha256).digest()


def _gather(mine: bytes, size: int, group: dist.ProcessGroup) -> list[bytes]:
    rows = list(torch.empty(size, _BYTES, dtype=torch.uint8).unbind())
    dist.all_gather(rows, torch.frombuffer(bytearray(mine), dtype=torch.uint8), group=group)
    return [row.numpy().tobytes() for row in rows]
