"""Turns a marked test into a request."""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep._base.errors import ConfigError, UsageError
from lockstep._launch.function import pack
from lockstep.testing._request import Request, checked_worlds
from lockstep.testing._same import check_same

_FIELDS = ("shards", "kill", "compare_result", "limit_s")


def run_marked(
    name: str,
    function: Callable[..., Any],
    values: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    worlds: Sequence[int] | None,
) -> None:
    """Runs a marked test.

    Args:
        name: the name of the test, with its parameters.
        function: the test, or a bound method.
        values: the values of its arguments: parameters and fixtures.
        args: the positional arguments of the marker.
        kwargs: the keyword arguments of the marker.
        worlds: numbers of processes that override the marker's; None: the marker's.

    Raises:
        ConfigError: the marker's arguments are invalid.
        UsageError: the function or a value cannot be sent to other processes.

    For other errors see ``same_at``."""
    request = request_of(args, kwargs, worlds)
    for argument, value in values.items():
        check_sendable(argument, value)
    check_same(request, name, functools.partial(function, **values))


def request_of(args: Sequence[Any], kwargs: Mapping[str, Any], worlds: Sequence[int] | None) -> Request:
    """Returns the request of a marker. Pure.

    ``worlds`` of the command line do not change V, which is the marker's unless they need more. So
    they do not change what is computed.

    Raises:
        ConfigError: the arguments are invalid.
    """
    given = dict(kwargs)
    if len(args) > 1 or (args and "worlds" in given) or not (args or "worlds" in given):
        raise ConfigError(
            f"pytest.mark.lockstep has arguments {args!r} and {kwargs!r}. Pass the numbers of processes, and everything "
            "else by name: @pytest.mark.lockstep(worlds=(1, 2, 4), kill=True)",
            code="marker-arguments",
        )
    own = checked_worlds(args[0] if args else given.pop("worlds"), "worlds")
    fields = {name: given.pop(name) for name in _FIELDS if name in given}
    return Request(worlds=own if worlds is None else worlds, fit_also=own, settings=given, **fields)


def check_sendable(name: str, value: Any) -> None:
    """Check that the value of a test's argument means the same in another process.

    Raises:
        UsageError: it does not.
    """
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    module = str(getattr(value, "__module__", None) or type(value).__module__)
    if kind.startswith("_pytest.") or module.startswith("_pytest."):
        why = f"it is an object of pytest ({kind}), which acts on pytest's process"
    elif unpicklable := _why_unpicklable(value):
        why = f"it is a {kind}, which cannot be pickled ({unpicklable})"
    else:
        return
    raise UsageError(
        f"cannot pass the test's argument {name!r} to the processes that train: {why}. Use plain values, paths, arrays and "
        "tensors, and create other objects in the test itself, which runs in these processes.",
        code="argument-not-sendable",
    )


def _why_unpicklable(value: Any) -> str:
    """Empty: it can be pickled, by pickle or cloudpickle."""
    try:
        pickle.dumps(value)
    except Exception as error:  # of any kind
        with contextlib.suppress(UsageError):
            pack(_why_unpicklable, (value,))
            return ""
        return str(error)
    return ""
