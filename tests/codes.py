"""Errors by their codes, so that a test does not depend on the words of a message."""

import pytest

from lockstep._base.errors import LockstepError


def raises(kind: type[LockstepError], code: str) -> "pytest.RaisesExc[LockstepError]":
    """As ``pytest.raises``, for an error of this type and code."""
    return pytest.raises(kind, check=lambda error: error.code == code)
