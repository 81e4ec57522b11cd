"""A run's script, launches and machines, as recorded in its files; and how two runs differ in
these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep._base.errors import UsageError
from lockstep._events.history import Launch, read_launches
from lockstep._state.checkpoint.store import Store, step_of
from lockstep._state.rundir.fixed_settings import Command, FixedSettings, read_fixed_settings

Fields = Mapping[str, Any]

OF_BITS = ("torch", "device", "device_name", "threads")
"""The fields of a launch that may change results although the run's birth is the same."""
_OF_MACHINES = ("launcher", "world_size", "num_nodes", "hosts", "num_cores", "python", "lockstep", "strategy")
_OF_SCRIPTS = ("args", "script_sha256", "cwd")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The records in the files of a run, apart from its checkpoints."""

    path: Path
    birth: FixedSettings
    command: Command
    launches: tuple[Launch, ...]
    last_step: int
    """The last step known to have been taken."""

    def start_of(self, step: int) -> Fields:
        """The event ``start`` of the last launch that took a step, whose result counts; empty: it
        is not known."""
        taken = [launch.start for launch in self.launches if (launch.resumed_after or 0) < step]
        start = taken[-1] if taken else {}
        return {**start, "hosts": sorted(set(start["hosts"]))} if "hosts" in start else start


def read_record(run_dir: Path) -> RunRecord:
    """Read the record of a run.

    Raises:
        UsageError: it is not a run.
        ConfigError: its birth is damaged.
    """
    contents = read_fixed_settings(run_dir)
    if contents is None:
        raise UsageError(
            f"{run_dir} is not a run: it has no birth.json. `lockstep runs DIR` lists the runs in a directory.",
            code="not-a-run",
        )
    saved = [step_of(path) for path in Store(run_dir).all()]
    try:
        launches = read_launches(run_dir)
    except FileNotFoundError:
        launches = []
    except OSError as error:
        raise UsageError(f"cannot read the event log of {run_dir}: {error}", code="event-log-unreadable") from error
    return RunRecord(
        path=run_dir,
        birth=contents[0],
        command=contents[1],
        launches=tuple(launches),
        last_step=max([0, *saved, *(launch.last_step or launch.resumed_after or 0 for launch in launches)]),
    )


@dataclass(frozen=True, kw_only=True)
class RecordDifference:
    """A setting, or a property of the script or machine, in which two runs differ."""

    what: str
    values: tuple[str, str]
    changes_results: bool
    """Whether the difference may change results."""


def differences(first: RunRecord, second: RunRecord, step: int) -> Iterator[RecordDifference]:
    """The differences of two runs in a step: births and scripts first, then machines."""
    births = first.birth.as_json(), second.birth.as_json()
    yield from _differing(births[0], births[1], births[0], changes_results=True)
    scripts = tuple({"script": record.command.script, "args": list(record.command.args)} for record in (first, second))
    starts = first.start_of(step), second.start_of(step)
    both = [name for name in (*_OF_SCRIPTS, *OF_BITS, *_OF_MACHINES) if name in starts[0] and name in starts[1]]
    yield from _differing(scripts[0], scripts[1], [name for name in scripts[0] if name not in both], changes_results=True)
    for names, changes in (((*_OF_SCRIPTS[:2], *OF_BITS), True), ((_OF_SCRIPTS[2], *_OF_MACHINES), False)):
        known = [name for name in names if name in both and name not in births[0]]
        yield from _differing(starts[0], starts[1], known, changes_results=changes)


def _differing(first: Fields, second: Fields, names: Any, *, changes_results: bool) -> Iterator[RecordDifference]:
    for name in names:
        values = _text(first.get(name)), _text(second.get(name))
        if first.get(name) != second.get(name):
            yield RecordDifference(what=name, values=values, changes_results=changes_results)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return str(value)[:16] if isinstance(value, str) and len(value) == 64 else str(value)
