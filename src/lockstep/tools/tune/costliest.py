"""What costs most in a loader: the function that its batches spend most of their time in, and a sample that takes far longer
than others."""

from __future__ import annotations

import ast
import contextlib
import cProfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from lockstep.base.tracebacks.frames import OURS, owner
from lockstep.data.sources import Deal

_LIMIT_S = 0.5
_MOST_BATCHES, _LEAST_BATCHES = 32, 2
_MAJOR = 0.5
"""The share of a function's time that one of its callees must take to be named with it."""
_MOST_SUSPECTS = 3
_OUTLIER = 5.0
"""A sample that takes at least this multiple of the median is named."""

Function = tuple[str, int, str]
"""File, line and name, as in ``pstats``."""


def find_costliest(get: Callable[[], Deal], batches: Any, batch_s: float) -> dict[str, Any]:
    """Where the time of a loader's batches goes.

    Args:
        get: fetches a batch in this process.
        batches: the script's DataLoader.
        batch_s: the time of a batch, in seconds.

    Returns:
        ``function``, ``file``, ``line`` and ``share`` of the function that costs most, and ``inside``, the callee that takes
        most of its time; none of these if no Python function was called. ``sample``, ``sample_s`` and ``median_s`` of a
        sample that takes far longer than others, if there is one.
    """
    get()
    count = max(_LEAST_BATCHES, min(_MOST_BATCHES, int(_LIMIT_S / max(batch_s, 1e-6))))
    profile = cProfile.Profile()
    deals = []
    for _ in range(count):
        profile.enable()
        deals.append(get())
        profile.disable()
    profile.create_stats()
    costliest = heaviest(profile.stats)
    if not isinstance(batches.dataset, IterableDataset):
        samples = [sample for plan, _ in deals for micro in plan.micro_steps for sample in micro.samples]
        with contextlib.suppress(NotImplementedError, TypeError):  # it has only __getitems__
            costliest.update(_slowest_sample(batches.dataset, samples))
    return costliest


def heaviest(
    stats: Mapping[Function, tuple[int, int, float, float, Mapping[Function, tuple[int, int, float, float]]]],
) -> dict[str, Any]:
    """The user's function in which most of a profile's time is spent, without that in others of theirs that it calls. Pure,
    except that it reads the function's source."""
    total_s = sum(own_s for _, _, own_s, _, _ in stats.values())
    callees: dict[Function, list[tuple[float, Function]]] = {}
    for function, (_, _, _, _, callers) in stats.items():
        for caller, (_, _, _, spent_s) in callers.items():
            callees.setdefault(caller, []).append((spent_s, function))
    for is_theirs in (_is_users, _is_outside):
        of_user = {function: whole_s for function, (_, _, _, whole_s, _) in stats.items() if is_theirs(function)}
        if of_user:
            break
    else:
        return {}

    def alone_s(function: Function) -> float:
        return of_user[function] - sum(spent_s for spent_s, callee in callees.get(function, ()) if callee in of_user)

    function = max(of_user, key=alone_s)
    inner_s, inner = max(callees.get(function, []), default=(0.0, None))
    file, line, name = function
    return {
        "function": _qualified(file, line, name),
        "file": file,
        "line": line,
        "share": min(1.0, alone_s(function) / total_s) if total_s else 0.0,
        "inside": _plain(inner) if inner is not None and inner_s >= _MAJOR * alone_s(function) else None,
    }


def _slowest_sample(dataset: Any, samples: Iterable[Any]) -> dict[str, Any]:
    times: list[tuple[float, Any]] = []
    began_s = time.perf_counter()
    for sample in samples:
        asked_s = time.perf_counter()
        dataset[sample]
        times.append((time.perf_counter() - asked_s, sample))
        if time.perf_counter() - began_s > _LIMIT_S and len(times) >= _LEAST_BATCHES:
            break
    if len(times) < 3:
        return {}
    median_s = sorted(seconds for seconds, _ in times)[len(times) // 2]
    again: list[tuple[float, Any]] = []
    for first_s, sample in sorted(times, key=lambda pair: -pair[0])[:_MOST_SUSPECTS]:
        asked_s = time.perf_counter()
        dataset[sample]
        again.append((min(first_s, time.perf_counter() - asked_s), sample))  # one may have been held up by something else
    slowest_s, slowest = max(again, key=lambda pair: pair[0])
    if slowest_s < _OUTLIER * median_s or slowest_s < 1e-3:
        return {}
    return {"sample": str(slowest), "sample_s": slowest_s, "median_s": median_s}


def _is_outside(function: Function) -> bool:
    """Whether it is Python code from outside lockstep."""
    file = function[0]
    return file[:1] not in ("~", "<") and not file.startswith(OURS) and "/torch/utils/data/" not in file


def _is_users(function: Function) -> bool:
    return _is_outside(function) and owner(function[0]) == "user"


def _plain(function: Function) -> str:
    file, _, name = function
    return name.removeprefix("<built-in method ").removesuffix(">") if file == "~" else f"{name} ({Path(file).name})"


def _qualified(file: str, line: int, name: str) -> str:
    """The name, qualified with that of its class."""
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0):
                return f"{node.name}.{name}"
    return name
