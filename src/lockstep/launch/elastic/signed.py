"""The launchers' store, in which nothing counts but what a launcher of the run has written.

Every value is signed for the name that it stands under (``launch.secret``), with a key that is derived anew for each store, and
its signature is checked before anything else looks at it. What is left to whoever reaches the port without the secret: to
remove values, to write what is refused, to write again what stood under the same name earlier in the same launch, and to make
names exist. That can end a run, or have it wait.
"""

from __future__ import annotations

import uuid
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep.errors import LaunchError
from lockstep.launch.secret import Secret


class ForgedError(LaunchError):
    """A value in the launchers' store that was not signed with the secret of the run."""


class SignedStore(Store):
    """A store whose values are signed.

    torchelastic may put PyTorch's ``PrefixStore`` on top, as long as somebody refers to this object: that one does not keep
    what Python has added to it alive. What lockstep puts on top itself is ``under``.

    Args:
        inner: keeps them.
        secret: of the run.
        where: the store, for the user.
        prefix: of all names.

    Raises:
        ForgedError: from everything that reads a value.
    """

    def __init__(self, inner: Store, secret: Secret, where: str, prefix: str = "") -> None:
        super().__init__()
        self._inner: Any = inner  # it takes bytes everywhere, though its types say str
        self._secret = secret
        self._where = where
        self._prefix = prefix

    def under(self, prefix: str) -> SignedStore:
        """The same store, with this and a slash before all names."""
        return SignedStore(self._inner, self._secret, self._where, f"{self._prefix}{prefix}/")

    def set(self, key: str, value: str | bytes) -> None:
        """See Store."""
        name = self._prefix + key
        self._inner.set(name, self._sign(name, value))

    def get(self, key: str) -> bytes:
        """See Store."""
        name = self._prefix + key
        return self._open(name, self._inner.get(name))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """See Store. Nothing expected: that there is no such name."""
        name = self._prefix + key
        before = self._sign(name, expected) if expected else b""
        return self._open(name, self._inner.compare_set(name, before, self._sign(name, desired)))

    def add(self, key: str, amount: int) -> int:
        """See Store. (A number that the store adds up itself could not be signed.)"""
        name, before, number = self._prefix + key, b"", 0
        while True:
            # Two who count at once write different bytes, so that each knows which of them was first.
            after = self._sign(name, f"{number + amount} {uuid.uuid4().hex}")
            current = self._inner.compare_set(name, before, after)
            if current == after:
                return number + amount
            if current == before != b"":  # PyTorch's answer where there is no such name any more
                before, number = b"", 0
                continue
            before, number = current, int(self._open(name, current).split()[0])
            if amount == 0:
                return number

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """See Store."""
        names = [self._prefix + key for key in keys]
        return [self._open(name, value) for name, value in zip(names, self._inner.multi_get(names), strict=True)]

    def check(self, keys: list[str]) -> bool:
        """See Store."""
        return bool(self._inner.check([self._prefix + key for key in keys]))

    def wait(self, keys: list[str], *timeout: Any) -> None:
        """See Store."""
        self._inner.wait([self._prefix + key for key in keys], *timeout)

    def delete_key(self, key: str) -> bool:
        """See Store."""
        return bool(self._inner.delete_key(self._prefix + key))

    deleteKey = delete_key  # noqa: N815 - as PrefixStore calls it

    def _sign(self, name: str, value: str | bytes) -> bytes:
        return self._secret.sign(name, value.encode() if isinstance(value, str) else value)

    def _open(self, name: str, signed: bytes) -> bytes:
        value = self._secret.open(name, signed)
        if value is None:
            raise ForgedError(
                f"what stands under {name!r} in the launchers' store at {self._where} was not written by a launcher of this "
                "run: somebody without the run's secret can reach that port, and writes there. All processes of this machine "
                "have ended. Let only the machines of the run through to it (a private network, a firewall), and start again"
            )
        return value
