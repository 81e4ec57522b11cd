"""The secret shared by the launchers of a run, with which they sign what they write into their
store.

Without it, a program that reaches the store's port could direct launchers to other hosts. Unless
the user gives one, the launcher that keeps the store creates it, in a file next to the run that
only its user can read, and removes it at the end; the others read it there. Signatures are HMACs
(RFC 2104) with SHA-256."""

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

from lockstep._base.atomic import write_atomic
from lockstep._base.errors import ConfigError
from lockstep._launch.nodes import Nodes
from lockstep._world.environment import SECRET
from lockstep._world.machine.addresses import is_loopback

OPTION = "--rdzv-secret-file"
_SHORTEST = 16
"""The shortest secret that is accepted, in characters."""
_DIGITS = 64
"""Hexadecimal digits of a signature."""


@dataclass(frozen=True)
class Secret:
    """A key that signs values, each together with its name."""

    key: bytes = field(repr=False)

    def derived(self, nonce: bytes) -> Secret:
        """A secret derived from this one and a nonce."""
        return Secret(hmac.new(self.key, b"derived" + nonce, hashlib.sha256).digest())

    def sign(self, name: str, value: bytes) -> bytes:
        """The value, preceded by its signature."""
        return self._signature(name, value) + value

    def open(self, name: str, signed: bytes) -> bytes | None:
        """The value; None: it was signed without the secret, or under another name."""
        signature, value = signed[:_DIGITS], signed[_DIGITS:]
        return value if hmac.compare_digest(signature, self._signature(name, value)) else None

    def _signature(self, name: str, value: bytes) -> bytes:
        begin = name.encode()
        # With the length of the name, so that no other split into name and value has this
        # signature.
        message = len(begin).to_bytes(8, "big") + begin + value
        return hmac.new(self.key, message, hashlib.sha256).hexdigest().encode()


@dataclass(frozen=True, kw_only=True)
class SharedSecret:
    """The secret of a run, as far as this launcher knows it: by itself, or in a file."""

    given: Secret | None
    """The secret that the user has given; None: it is in the file."""
    path: Path
    """The secret's file, which the launcher that keeps the store writes."""

    def look(self) -> Secret | None:
        """The secret; None: there is no file yet, or it is not this user's, or others can read or
        write it."""
        if self.given is not None:
            return self.given
        try:
            with open(self.path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
                # Of the open file: by its name, another file could be examined than the one that is
                # read.
                status, key = os.fstat(file.fileno()), file.read()
        except OSError:
            return None
        is_private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        return Secret(key) if is_private and key else None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A context in which the file exists, if it is needed. For the launcher that keeps the
        store.

        Raises:
            ConfigError: it cannot be written.
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
                f"{self.path}, by which the other launchers get the secret of this run, cannot be written "
                f"({error.strerror}). Start in a directory that all nodes see, or {_how_to_give()}",
                code="secret-not-written",
            ) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if self.path.read_bytes() == key:  # else another launch has taken its place
                    self.path.unlink()

    def not_shared(self, keeper: str) -> ConfigError:
        """The error if ``keeper``, as the user knows it, has another secret, or this launcher knows
        none."""
        if self.given is not None:
            return ConfigError(
                f"{keeper} has a different secret from this launcher, whose secret comes from {SECRET} or {OPTION}. Pass "
                "all launchers of the run the same one",
                code="secret-differs",
            )
        if (mode := self._open_to_others()) is not None:
            # Mounts of object stores (gcsfuse, s3fs) and SMB shares show the same mode for all
            # files.
            return ConfigError(
                f"{keeper} has a secret that this launcher cannot trust: {self.path} has mode {mode:04o}, with which others "
                f"can read or write it. If that file system cannot keep files private, {_how_to_give()}",
                code="secret-not-private",
            )
        return ConfigError(
            f"{keeper} has a secret that this launcher does not know: {self.path} is missing here, or is another file than "
            "on its machine. Start all launchers as one user in a directory that all nodes see, with the same spelling of "
            f"the endpoint, or {_how_to_give()}",
            code="secret-unknown",
        )

    def _open_to_others(self) -> int | None:
        """The mode of this user's file if others can read or write it; None: they cannot, or there
        is no such file."""
        try:
            status = self.path.lstat()
        except OSError:
            return None
        mode = stat.S_IMODE(status.st_mode)
        return mode if stat.S_ISREG(status.st_mode) and mode & 0o077 else None


def shared_secret(nodes: Nodes, run_dir: str | None, file: str | None, text: str | None) -> SharedSecret:
    """Where a launcher finds the secret.

    Args:
        run_dir: the requested run directory: the file is next to it; None: in the current
            directory.
        file: a file given by the user.
        text: the secret itself, if given by the user.

    Raises:
        ConfigError: the given secret cannot be read, or is too short.
    """
    given = None
    if file is not None:
        try:
            given = _checked(Path(file).read_bytes(), f"{OPTION} {file}")
        except OSError as error:
            raise ConfigError(f"{OPTION} {file} cannot be read ({error})", code="secret-unreadable") from error
    elif text:
        given = _checked(os.fsencode(text), SECRET)
    parent = Path.cwd() if run_dir is None else Path(run_dir).absolute().parent
    # A loopback address means each machine itself, and several may share the directory.
    host = f"{nodes.host}-of-{socket.gethostname()}" if is_loopback(nodes.host) else nodes.host
    return SharedSecret(given=given, path=parent / f".lockstep-{host}-{nodes.port}.secret")


def _checked(content: bytes, name: str) -> Secret:
    key = content.strip()
    if len(key) < _SHORTEST:
        raise ConfigError(
            f"{name}: a secret of {len(key)} characters can be guessed. At least {_SHORTEST} are needed: `openssl rand -hex "
            "32` prints one",
            code="secret-too-short",
        )
    return Secret(key)


def _how_to_give() -> str:
    return f"pass all of them the same secret, in the environment variable {SECRET} or by {OPTION} FILE"
