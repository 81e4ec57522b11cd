"""Exceptions that only echo the failure of another rank, and what a rank was handling when it met
one. Pure."""

from __future__ import annotations

import traceback

from lockstep._base.errors import AbandonedError, StrangerError
from lockstep._base.stopping import Stopped
from lockstep._base.tracebacks.excerpt import chain, message_of
from lockstep._base.tracebacks.frames import owner

_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError", "PeerError", "AbandonedError"}
_TEXTS = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "ms for recv operation to complete",
    "ms for send operation to complete",
    "Wait timeout",  # of the store
)
_NO_FAILURES = (KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration, Stopped)
"""Errors that a rank may be handling although nothing has failed in it."""


def is_echo(error: BaseException) -> bool:
    """Whether an exception looks like a consequence of another rank's failure, or was raised
    because of such a one."""
    return any(map(_is_echo, chain(error)))


def is_echo_in(traceback: str) -> bool:
    """Whether a traceback, as text, is that of a consequence. Not if it also shows an error of this
    rank, which may be the cause."""
    blocks = traceback.split("Traceback (most recent call last):\n")[1:]
    said = ["\n".join(line for line in block.splitlines() if not line.startswith("  ")) for block in blocks]
    return bool(said) and all(any(sign in text for sign in (*_TYPES, *_TEXTS)) for text in said)


def handled_before(error: BaseException) -> BaseException | None:
    """The exception that a rank was handling, in a ``finally`` or ``except``, when it met the first
    echo; None: there is none.

    It is mostly the cause of all: while this rank handled it, it did not take part in what the
    others were doing."""
    links = list(chain(error))
    first = max((number for number, link in enumerate(links) if _is_echo(link)), default=len(links))
    return next((link for link in links[first + 1 :] if not isinstance(link, _NO_FAILURES)), None)


def what_followed(error: BaseException) -> str:
    """Describes the call in which a rank met the first echo, and the line of the user's code."""
    for link in reversed([link for link in chain(error) if _is_echo(link)]):
        frames = traceback.extract_tb(link.__traceback__)
        users = [number for number, frame in enumerate(frames) if owner(frame.filename) == "user"]
        if users:
            # Without what only passes calls on: lockstep's log of them, and PyTorch's.
            inner = [frame.name for frame in frames[users[-1] + 1 :] if frame.name != "wrapper"]
            at = f"{frames[users[-1]].filename}:{frames[users[-1]].lineno}"
            verb = "called" if isinstance(link, AbandonedError) else "waited in"
            return f"{verb} {inner[0]}, at {at}" if inner else f"failed at {at}"
    return "waited"


def is_of_loader(error: BaseException) -> bool:
    """Whether a connection to one of this rank's own loader workers was lost."""
    files = (frame.filename for frame in traceback.extract_tb(error.__traceback__))
    return isinstance(error, ConnectionError) and any("/torch/utils/data/" in file for file in files)


def _is_echo(error: BaseException) -> bool:
    if isinstance(error, StrangerError) or is_of_loader(error):
        return False
    if {kind.__name__ for kind in type(error).__mro__} & _TYPES:
        return True
    return isinstance(error, RuntimeError) and any(text in message_of(error) for text in _TEXTS)
