"""The secret that the launchers of a run share, and sign with what they write into their store.

Without one, whoever reaches the store's port could tell a launcher where to connect and with whom. Where nobody has given one,
the launcher that keeps the store makes it, in a file beside the run that only its user can read, and removes it at the end;
the others read it there. HMAC: RFC 2104, with SHA-256.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.atomic import write_atomic
from lockstep.errors import ConfigError
from lockstep.launch.nodes import Nodes
from lockstep.machine.addresses import is_loopback
from lockstep.world import SECRET

OPTION = "--rdzv-secret-file"
_SHORTEST = 16
"""Characters."""
_DIGITS = 64
"""Of a signature: hexadecimal digits of SHA-256."""


@dataclass(frozen=True)
class Secret:
    """Signs values, each for the name that it stands under."""

    key: bytes = field(repr=False)

    def derived(self, nonce: bytes) -> Secret:
        """Another secret, which everybody who has this one derives from the same nonce."""
        return Secret(hmac.new(self.key, b"derived" + nonce, hashlib.sha256).digest())

    def sign(self, name: str, value: bytes) -> bytes:
        """The value with its signature in front of it."""
        return self._signature(name, value) + value

    def open(self, name: str, signed: bytes) -> bytes | None:
        """The value; None: somebody without the secret has written it, or it stood under another name."""
        signature, value = signed[:_DIGITS], signed[_DIGITS:]
        return value if hmac.compare_digest(signature, self._signature(name, value)) else None

    def _signature(self, name: str, value: bytes) -> bytes:
        begin = name.encode()
        message = len(begin).to_bytes(8, "big") + begin + value
        return hmac.new(self.key, message, hashlib.sha256).hexdigest().encode()


@dataclass(frozen=True, kw_only=True)
class SharedSecret:
    """Where this launcher finds the secret."""

    given: Secret | None
    """By the user; None: it stands in the file."""
    path: Path
    """The file of whoever keeps the store."""

    def look(self) -> Secret | None:
        """The secret as it is known now; None: there is no such file of this user's that nobody else can read or write."""
        if self.given is not None:
            return self.given
        try:
            with open(self.path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
                status, key = os.fstat(file.fileno()), file.read()
        except OSError:
            return None
        is_private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        return Secret(key) if is_private and key else None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Make the file, if it is needed, and remove it at the end of the block. For the launcher that keeps the store.

        Raises:
            ConfigError: no file can be written there.
        """
        if self.given is not None:
            yield
            return
        key = secrets.token_hex(32).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, key, mode=0o600)
        except OSError as error:
            raise ConfigError(
                f"{self.path}, which would tell the other launchers the secret of this run, cannot be written "
                f"({error.strerror}). Start in a directory that all nodes see, or {_how_to_give()}"
            ) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if self.path.read_bytes() == key:  # else another launch has taken its place
                    self.path.unlink()

    def not_shared(self, keeper: str) -> ConfigError:
        """What to raise where ``keeper``, for the user, has another secret, or this launcher knows none."""
        if self.given is not None:
            why = f"has another secret than this launcher, which was given one by {SECRET} or {OPTION}"
        else:
            why = f"has a secret that this launcher does not know: {self.path} is not here, or another file than on its machine"
        return ConfigError(
            f"{keeper} {why}. Launchers of one run need the same: start them as one user in a directory that all nodes see, "
            f"with the endpoint written alike (the file is named after it), or {_how_to_give()}"
        )


def shared_secret(nodes: Nodes, run_dir: str | None, file: str | None, text: str | None) -> SharedSecret:
    """Where a launcher finds the secret.

    Args:
        nodes: of the run.
        run_dir: of the run, if it was given: the file of the secret lies beside it, else in the current directory.
        file: a file that the user has given for this.
        text: the secret itself, if the user has given it so.

    Raises:
        ConfigError: what was given cannot be read, or is too short.
    """
    given = None
    if file is not None:
        try:
            given = _checked(Path(file).read_bytes(), f"{OPTION} {file}")
        except OSError as error:
            raise ConfigError(f"{OPTION} {file} cannot be read ({error})") from error
    elif text:
        given = _checked(os.fsencode(text), SECRET)
    parent = Path.cwd() if run_dir is None else Path(run_dir).absolute().parent
    # By an address of loopback each machine means itself, and others may do so in the same directory.
    host = f"{nodes.host}-of-{socket.gethostname()}" if is_loopback(nodes.host) else nodes.host
    return SharedSecret(given=given, path=parent / f".lockstep-{host}-{nodes.port}.secret")


def _checked(content: bytes, name: str) -> Secret:
    key = content.strip()
    if len(key) < _SHORTEST:
        raise ConfigError(
            f"{name}: a secret of {len(key)} characters can be guessed, {_SHORTEST} or more are needed: `openssl rand -hex "
            "32` prints one"
        )
    return Secret(key)


def _how_to_give() -> str:
    return f"give each of them the same one, in the environment variable {SECRET} or by {OPTION} FILE"
