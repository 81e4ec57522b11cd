"""A rendezvous at a path on a file system that all processes share, whatever earlier runs have left there.

The path itself is never touched. Beside it, in the directory ``PATH.lockstep``:

``rank-R``         what rank R says while it waits, as JSON
``store-SESSION``  PyTorch's FileStore of one run

What is found there may be of a run that was killed, with other ranks, even under the same names. So nobody believes anything
but an answer to a question of its own. Each rank writes down a number that it has just drawn. Rank 0 draws a name for this
session, and repeats all numbers that it reads. A rank that finds its own number repeated knows that rank 0 lives, and repeats
the session's name; once all have done that, rank 0 knows that they live. The session's store is new, so it holds nothing old.

(A FileStore alone will not do: the ranks share nothing but the path, where the store of a killed run may still be, half
written; and whether a lock is held cannot be seen from another machine on all file systems.)
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import stat
from pathlib import Path
from typing import Any

from torch.distributed import FileStore  # type: ignore[attr-defined]

from lockstep.base.errors import ConfigError
from lockstep.world.comm.waiter import Waiter

_STORE, _RANK = "store-", "rank-"


class SharedFile:
    """One rank's part in a rendezvous. Every rank must make one; it blocks until all have.

    Args:
        path: the path, the same for all ranks. Its directory must exist.
        waiter: who this is, and how long it may wait.

    Raises:
        ConfigError: the path cannot be used, or another process has come as the same rank, or as one of another number.
        PeerError: not all have come in time.
    """

    def __init__(self, path: Path, waiter: Waiter) -> None:
        self._directory = path.with_name(path.name + ".lockstep")
        self._waiter = waiter
        self._nonce = secrets.token_hex(8)
        self._session = ""
        self._joined: set[int] = set()
        """Of rank 0: who is known to be here."""
        try:
            self._make_directory()
            if waiter.rank == 0:
                self._call_together()
            else:
                self._answer()
        except OSError as error:
            raise ConfigError(
                f"{waiter.endpoint} cannot be used for a rendezvous: {error}. Name a path in a directory that exists, that "
                "every process can write to, and that is the same one for all of them."
            ) from error
        except BaseException:
            self._withdraw()
            raise
        self.store = FileStore(str(self._directory / f"{_STORE}{self._session}"), waiter.world_size)
        """Of this rendezvous alone."""

    def leave(self) -> None:
        """Have no more use for the store. The last one to leave clears up. Each rank should call it, once."""
        with contextlib.suppress(OSError, RuntimeError):  # somebody has cleared up already
            if self.store.add("lockstep/left", 1) == self._waiter.world_size:
                self._clear()

    def _clear(self) -> None:
        # Each rank's FileStore counts itself out when it is deleted, and that creates the file anew if it is gone.
        for _ in range(self._waiter.world_size):
            (self._directory / f"{_STORE}{self._session}").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._directory.rmdir()
                return

    def _make_directory(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
        status = self._directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise ConfigError(
                f"{self._directory} is not a directory of this user, so it cannot be trusted: name another path"
            )

    # Rank 0

    def _call_together(self) -> None:
        waiter = self._waiter
        session = self._session = secrets.token_hex(8)
        told: dict[str, str] | None = None
        while True:
            notes = {rank: note for rank in range(waiter.world_size) if (note := self._read(rank))}
            call = notes.pop(0, None)
            if told is not None and call is not None and call.get("session") != session:
                raise self._taken(call)
            self._joined = {rank for rank, note in notes.items() if note["session"] == session}
            if len(self._joined) == waiter.world_size - 1:
                break
            numbers = {str(rank): note["nonce"] for rank, note in notes.items()}
            if numbers != told or call is None:
                self._write({"session": session, "numbers": numbers})
                told = numbers
            waiter.pause(lambda: [rank for rank in range(1, waiter.world_size) if rank not in self._joined])
        for path in self._directory.glob(f"{_RANK}*"):  # of whoever still waits, it is written again
            path.unlink(missing_ok=True)

    # The others

    def _answer(self) -> None:
        waiter = self._waiter
        has_written = False
        while not self._session:
            note, call = self._read(waiter.rank), self._read(0)
            if note is None:
                self._write({"nonce": self._nonce, "session": ""})
            elif note["nonce"] != self._nonce:
                if has_written:
                    raise self._taken(note)
                self._write({"nonce": self._nonce, "session": ""})
            has_written = True
            if call is not None and call["numbers"].get(str(waiter.rank)) == self._nonce:
                self._check_size(call)
                self._session = call["session"]
                self._write({"nonce": self._nonce, "session": self._session})
            else:
                waiter.pause(lambda: [0])

    def _check_size(self, call: dict[str, Any]) -> None:
        if call["world_size"] != self._waiter.world_size:
            raise ConfigError(
                f"this process joined {self._waiter.endpoint} as rank {self._waiter.rank} of {self._waiter.world_size}, but "
                f"rank 0 there is one of {call['world_size']} ({_who(call)}): start all of them with the same number of "
                "processes"
            )

    # Notes

    def _path(self, rank: int) -> Path:
        return self._directory / f"{_RANK}{rank}"

    def _read(self, rank: int) -> dict[str, Any] | None:
        """What a rank says; None: nothing, or it is just being written, or was never finished."""
        try:
            note = json.loads(self._path(rank).read_bytes())
        except ValueError:
            return None
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):  # the second: removed by another machine, just now
                return None
            raise
        names = {"session", "world_size"} | ({"numbers"} if rank == 0 else {"nonce"})
        return note if isinstance(note, dict) and names <= note.keys() else None

    def _write(self, note: dict[str, Any]) -> None:
        who = {"world_size": self._waiter.world_size, "host": socket.gethostname(), "pid": os.getpid()}
        text = json.dumps({**note, **who})
        # In place: a network file system shows others the new content of a file sooner than a new file of the same name.
        try:
            self._path(self._waiter.rank).write_text(text)
        except FileNotFoundError:  # the last rank of an earlier run has just removed the directory
            self._make_directory()
            self._path(self._waiter.rank).write_text(text)

    def _taken(self, note: dict[str, Any]) -> ConfigError:
        return ConfigError(
            f"two processes joined {self._waiter.endpoint} as rank {self._waiter.rank}: this one, and {_who(note)}. Give "
            "each a rank of its own; if the other is of an earlier run, end it"
        )

    # Clearing up

    def _withdraw(self) -> None:
        """Leave nothing of a rendezvous that did not come about."""
        with contextlib.suppress(OSError):
            note = self._read(self._waiter.rank) or {}
            # Not that of another who came as this rank: it may have gone on already, and would not write it again.
            is_own = note.get("nonce") == self._nonce if self._waiter.rank else note.get("session") == self._session
            if is_own:
                self._path(self._waiter.rank).unlink(missing_ok=True)
            self._directory.rmdir()


def _who(note: dict[str, Any]) -> str:
    return f"process {note.get('pid', '?')} on {note.get('host', '?')}"
