"""Errors by their codes, so that a test does not depend on the words of a message."""

from collections.abc import Callable

import pytest

from lockstep._base.errors import LockstepError


def raises(kind: type[LockstepError], code: str) -> "pytest.RaisesExc[LockstepError]":
    """As ``pytest.raises``, for an error of this type and code."""
    return pytest.raises(kind, check=lambda error: error.code == code)


def refusal_of(function: Callable[..., object], *args: object) -> tuple[str, str, str] | None:
    """The type, code and message of the lockstep error that ends ``function(*args)``; None: there
    is none. For processes, of whose errors only the message reaches the test."""
    try:
        function(*args)
    except LockstepError as error:
        return type(error).__name__, error.code, str(error)
    return None
