"""A run's script, launches and machines, as recorded in its files; and how two runs differ in these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.checkpoint.store import Store, step_of
from lockstep.errors import UsageError
from lockstep.journal.events import read_events
from lockstep.rundir.birth import Birth, Command, read_birth

Fields = Mapping[str, Any]

OF_BITS = ("torch", "device", "device_name", "threads")
"""Fields of a launch that may change bits although the run's birth is the same."""
_OF_MACHINES = ("launcher", "world_size", "num_nodes", "hosts", "num_cores", "python", "lockstep", "strategy")
_OF_SCRIPTS = ("args", "script_sha256", "cwd")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a run."""

    after: int
    """The step after which it resumed; 0: it started from the beginning."""
    start: Fields
    """The journal's event ``start``."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What the files of a run record, apart from its checkpoints."""

    path: Path
    birth: Birth
    command: Command
    launches: tuple[Launch, ...]
    last_step: int
    """The last step known to have been taken."""

    def launch_of(self, step: int) -> Launch:
        """The last launch that took a step, whose result counts."""
        taken = [launch for launch in self.launches if launch.after < step]
        return taken[-1] if taken else Launch(after=0, start={})


def read_record(run_dir: Path) -> RunRecord:
    """Read the record of a run.

    Raises:
        UsageError: it is not a run.
        ConfigError: its birth is damaged.
    """
    contents = read_birth(run_dir)
    if contents is None:
        raise UsageError(f"{run_dir} is not a run: it has no birth.json (lockstep runs DIR lists the runs in a directory)")
    launches: list[Launch] = []
    last = max((step_of(path) for path in Store(run_dir).all()), default=0)
    try:
        for event in read_events(run_dir):
            if event["event"] == "start":
                launches.append(Launch(after=0, start={**event, "hosts": sorted(set(event.get("hosts", ())))}))
            elif event["event"] == "resume" and launches and isinstance(event.get("step"), int):
                launches[-1] = Launch(after=event["step"], start=launches[-1].start)
            if isinstance(event.get("step"), int):
                last = max(last, event["step"])
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UsageError(f"the journal of {run_dir} cannot be read: {error}") from error
    return RunRecord(path=run_dir, birth=contents[0], command=contents[1], launches=tuple(launches), last_step=last)


@dataclass(frozen=True, kw_only=True)
class Unlike:
    """A setting, or a property of the script or machine, in which two runs differ."""

    what: str
    values: tuple[str, str]
    changes_answer: bool
    """Whether it may change the answer."""


def differences(first: RunRecord, second: RunRecord, step: int) -> Iterator[Unlike]:
    """In what two runs differ in a step: births and scripts, then machines."""
    births = first.birth.as_json(), second.birth.as_json()
    yield from _unlike(births[0], births[1], births[0], changes_answer=True)
    scripts = tuple({"script": record.command.script, "args": list(record.command.args)} for record in (first, second))
    starts = first.launch_of(step).start, second.launch_of(step).start
    both = [name for name in (*_OF_SCRIPTS, *OF_BITS, *_OF_MACHINES) if name in starts[0] and name in starts[1]]
    yield from _unlike(scripts[0], scripts[1], [name for name in scripts[0] if name not in both], changes_answer=True)
    for names, changes in (((*_OF_SCRIPTS[:2], *OF_BITS), True), ((_OF_SCRIPTS[2], *_OF_MACHINES), False)):
        known = [name for name in names if name in both and name not in births[0]]
        yield from _unlike(starts[0], starts[1], known, changes_answer=changes)


def _unlike(first: Fields, second: Fields, names: Any, *, changes_answer: bool) -> Iterator[Unlike]:
    for name in names:
        values = _text(first.get(name)), _text(second.get(name))
        if first.get(name) != second.get(name):
            yield Unlike(what=name, values=values, changes_answer=changes_answer)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return str(value)[:16] if isinstance(value, str) and len(value) == 64 else str(value)
