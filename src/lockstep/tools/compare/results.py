"""Reads the ``results.json`` of a comparison or a verification back into the value that wrote it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lockstep.base.errors import ConfigError
from lockstep.base.regular import read_bytes
from lockstep.base.shapes import check, parse
from lockstep.tools.check.findings import Finding
from lockstep.tools.compare.comparison import Comparison, RowResult, RowRun
from lockstep.tools.compare.figures import Figures
from lockstep.tools.compare.methods import Method, Row
from lockstep.tools.trials.machine import Machine
from lockstep.tools.trials.study import FILE_NAME, Task
from lockstep.tools.verify.diagnosis.conclusion import Diagnosis
from lockstep.tools.verify.diagnosis.one_device import OneDevice
from lockstep.tools.verify.diagnosis.setting import Setting
from lockstep.tools.verify.trace.differences import Difference
from lockstep.tools.verify.verification import SettingResult, Summary, Verification

T = TypeVar("T")


def read_results(directory: Path) -> Comparison | Verification:
    """A comparison or a verification, complete or not.

    Its ``directory`` is the one given here: it may have been moved.

    Raises:
        ConfigError: there are no results, they are damaged, or those of another version.
    """
    file = directory / FILE_NAME
    try:
        content = parse(read_bytes(file))
        read = _verification if "settings" in content else _comparison
        return check(read(content, directory))
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing: {directory} is neither a comparison nor a verification") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{file} cannot be read as the results of lockstep compare or lockstep verify ({type(error).__name__}: {error}): "
            "it was damaged, or written by another version. Run the command in it again; the runs beside it can still be "
            f"looked at: lockstep runs {directory / 'runs'}"
        ) from error


def _comparison(content: Mapping[str, Any], directory: Path) -> Comparison:
    return Comparison(
        **_common(content, directory),
        rows=tuple(_row(row) for row in content["rows"]),
        rounds=content["rounds"],
        source=content["source"],
        notes=tuple(content["notes"]),
    )


def _row(content: Mapping[str, Any]) -> RowResult:
    method = _build(Method, content)
    runs = tuple(_build(RowRun, run, figures=_build_optional(Figures, run["figures"])) for run in content["runs"])
    return RowResult(row=_build(Row, content, method=method), runs=runs)


def _verification(content: Mapping[str, Any], directory: Path) -> Verification:
    return Verification(
        **_common(content, directory),
        results=tuple(_setting(setting) for setting in content["settings"]),
        one_device=_build_optional(OneDevice, content["one_device"]),
        diagnosis=_build_optional(Diagnosis, content["diagnosis"]),
        experiments=tuple(content["experiments"]),
        is_shards_chosen=content.get("is_shards_chosen", False),
        findings=tuple(_build(Finding, finding) for finding in content.get("findings", ())),
    )


def _setting(content: Mapping[str, Any]) -> SettingResult:
    return _build(
        SettingResult,
        content,
        setting=_build(Setting, content),
        summary=_build_optional(Summary, content["summary"]),
        difference=_build_optional(Difference, content["difference"]),
    )


def _common(content: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    # Shards and threads in the file are those of the study, not what was asked for.
    asked = content.get("shards_asked")
    task = _build(Task, content, script=Path(content["script"]), shards=asked, threads=None)
    machine = _build(Machine, content["machine"])
    return {"task": task, "machine": machine, "directory": directory, **{k: content[k] for k in ("shards", "threads")}}


def _build_optional(kind: Callable[..., T], content: Mapping[str, Any] | None) -> T | None:
    return None if content is None else _build(kind, content)


def _build(kind: Callable[..., T], content: Mapping[str, Any], **fields: Any) -> T:
    """A dataclass from the entries that are its fields; ``fields`` take precedence."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    known = {name: _as_tuple(content[name]) for name in names if name in content}
    return kind(**{**known, **fields})


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list) else value
