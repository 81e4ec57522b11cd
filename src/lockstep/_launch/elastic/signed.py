"""The launchers' store, which accepts only values written by launchers of the run.

Every value is signed together with its name (``_launch/secret.py``), by a key that is derived for
each store, and its signature is checked before the value is used. A program that reaches the port
without the secret can still remove values, write values that are refused, repeat an earlier value
of the same name and launch, and create names. That can end a run, or make it wait."""

from __future__ import annotations

import random
import time
import uuid
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]
from typing_extensions import override

from lockstep._base.errors import LaunchError
from lockstep._launch.secret import Secret

_AT_ONCE = 128
"""The largest number of names that one request sets."""
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.5


class ForgedError(LaunchError):
    """A value in the launchers' store that was not signed with the secret of the run."""


class SignedStore(Store):
    """A store whose values are signed. Every method that reads a value raises ForgedError if its
    signature is wrong.

    torchelastic may wrap it in PyTorch's ``PrefixStore``, which does not keep the Python part of
    this object alive: the caller must hold a reference. lockstep itself uses ``under``.

    Args:
        inner: stores the signed values.
        secret: of the store.
        where: the endpoint, for messages.
        prefix: of all names.
    """

    def __init__(self, inner: Store, secret: Secret, where: str, prefix: str = "") -> None:
        super().__init__()
        self._inner: Any = inner  # it accepts bytes, though its annotations say str
        self._secret = secret
        self._where = where
        self._prefix = prefix

    def under(self, prefix: str) -> SignedStore:
        """This store, with a further prefix and a slash for all names."""
        return SignedStore(self._inner, self._secret, self._where, f"{self._prefix}{prefix}/")

    def through(self, other: SignedStore) -> SignedStore:
        """This store's names, through the client of another store."""
        return SignedStore(other._inner, self._secret, self._where, self._prefix)

    @override
    def set(self, key: str, value: str | bytes) -> None:
        name = self._prefix + key
        self._inner.set(name, self._sign(name, value))

    @override
    def get(self, key: str) -> bytes:
        name = self._prefix + key
        return self._open(name, self._inner.get(name))

    @override
    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """``expected`` empty: the name must not exist."""
        name = self._prefix + key
        before = self._sign(name, expected) if expected else b""
        return self._open(name, self._inner.compare_set(name, before, self._sign(name, desired)))

    @override
    def add(self, key: str, amount: int) -> int:
        """Adds by ``compare_set``, since numbers that the store adds itself could not be signed.
        Callers that fail wait longer and longer, or a thousand of them would need a million
        attempts."""
        name, before, number, pause_s, num_failed = self._prefix + key, b"", 0, _LEAST_PAUSE_S, 0
        while True:
            # Concurrent callers write different bytes, so that each knows whether it was first.
            after = self._sign(name, f"{number + amount} {uuid.uuid4().hex}")
            current = self._inner.compare_set(name, before, after)
            if current == after:
                return number + amount
            if current == before != b"":  # PyTorch's answer if the name does not exist any more
                before, number = b"", 0
                continue
            before, number = current, int(self._open(name, current).split()[0])
            if amount == 0:
                return number
            num_failed += 1
            # The next attempt will only read the number, and the one after that can succeed.
            if num_failed % 2 == 0:
                time.sleep(random.random() * pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @override
    def multi_get(self, keys: list[str]) -> list[bytes]:
        names = [self._prefix + key for key in keys]
        return [self._open(name, value) for name, value in zip(names, self._inner.multi_get(names), strict=True)]

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        """Sets several names, in this order, with few requests."""
        names = [self._prefix + key for key in keys]
        signed = [self._sign(name, value) for name, value in zip(names, values, strict=True)]
        # PyTorch's server reads a request from its beginning each time that another piece of it
        # arrives, 64 KiB long.
        for first in range(0, len(names), _AT_ONCE):
            self._inner.multi_set(names[first : first + _AT_ONCE], signed[first : first + _AT_ONCE])

    @override
    def check(self, keys: list[str]) -> bool:
        return bool(self._inner.check([self._prefix + key for key in keys]))

    @override
    def wait(self, keys: list[str], *timeout: Any) -> None:
        self._inner.wait([self._prefix + key for key in keys], *timeout)

    @override
    def delete_key(self, key: str) -> bool:
        return bool(self._inner.delete_key(self._prefix + key))

    deleteKey = delete_key  # noqa: N815 - as PrefixStore calls it

    def _sign(self, name: str, value: str | bytes) -> bytes:
        return self._secret.sign(name, value.encode() if isinstance(value, str) else value)

    def _open(self, name: str, signed: bytes) -> bytes:
        value = self._secret.open(name, signed)
        if value is None:
            raise ForgedError(
                f"security: entry {name!r} in the launchers' store at {self._where} has no valid "
                "signature; another program can write to that port. All processes on this machine were "
                "stopped. Restrict the port to the machines of this run (private network, firewall)",
                code="store-entry-forged",
            )
        return value
