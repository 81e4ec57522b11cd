"""Files that more than one rank of a machine saves with ``torch.save`` at one time, which damages
them.

``torch.save`` is wrapped in the workers of ``lockstep run``. Each path that a rank saves is noted
once, in a file of the launch's private directory, since a rank may save and end within a moment.
Ranks that take turns, each in a different epoch, do nothing wrong.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._base.reports import SAME_FILE, Report
from lockstep._tools.explain.frames import stack_of, users_location
from lockstep._world.machine.sizes import name_ranks

_NAME = "saved.jsonl"
_MOST_PATHS = 1000
"""The most paths that are noted of a rank, which may have a file for each step."""
_DEVICES = "/dev/"
_AT_ONCE_S = 2.0
"""The seconds within which ranks that all save begin: they have just met in a collective."""


class NotedSaves:
    """Notes what this process saves.

    Args:
        private_dir: of the launch.
        rank: of this process.
    """

    def __init__(self, private_dir: Path, rank: int) -> None:
        self._file, self._rank, self._pid = private_dir / _NAME, rank, os.getpid()
        self._known: set[str] = set()
        self._is_begun = False

    def begin(self) -> None:
        """Note saves from now on, once torch is imported."""
        serialization = sys.modules.get("torch.serialization")
        save = getattr(sys.modules.get("torch"), "save", None)  # missing while it is being imported
        if self._is_begun or serialization is None or save is None:
            return
        self._is_begun = True
        # In both modules: pickle finds a function by module and name, and refuses one that is not
        # the object found there.
        sys.modules["torch"].save = serialization.save = self._noted(save)  # type: ignore[attr-defined]

    def _noted(self, save: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(save)
        def wrapper(obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # no error here may affect the script
                self._note(f)
            return save(obj, f, *args, **kwargs)

        return wrapper

    def _note(self, file: Any) -> None:
        path = os.path.realpath(file if isinstance(file, (str, os.PathLike)) else file.name)
        is_new = path not in self._known and len(self._known) < _MOST_PATHS
        if not is_new or path.startswith(_DEVICES) or os.getpid() != self._pid:
            return
        self._known.add(path)
        at = users_location(stack_of(sys._getframe(2)))
        fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"{json.dumps([self._rank, path, at, time.time()])}\n".encode())
        finally:
            os.close(fd)


class SavedFiles:
    """What the ranks of a launch have saved. ``private_dir``: of the launch."""

    def __init__(self, private_dir: Path) -> None:
        self._file = private_dir / _NAME
        self._num_read = 0
        self._by_path: dict[str, dict[int, tuple[str, float]]] = {}
        self._is_told = False

    def look(self) -> Report | None:
        """The first file that several ranks have saved at one time, once."""
        if self._is_told or not self._file.exists():
            return None
        with self._file.open("rb") as file:
            file.seek(self._num_read)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._num_read += len(line)
            rank, path, at, time_s = json.loads(line)
            self._by_path.setdefault(path, {})[int(rank)] = str(at), float(time_s)
        for path, saves in self._by_path.items():
            if len(places := _at_once(saves)) > 1:
                self._is_told = True
                return _report(path, places)
        return None


def _at_once(saves: Mapping[int, tuple[str, float]]) -> dict[int, str]:
    """The ranks that saved a file within moments of another one, with their lines."""
    return {
        rank: at
        for rank, (at, time_s) in saves.items()
        if any(other != rank and abs(time_s - when_s) <= _AT_ONCE_S for other, (_, when_s) in saves.items())
    }


def _report(path: str, places: dict[int, str]) -> Report:
    ranks: Sequence[int] = sorted(places)
    lines = sorted({(at, tuple(rank for rank in ranks if places[rank] == at)) for at in places.values()})
    return Report(
        kind=SAME_FILE,
        text="\n".join(
            [
                f"{name_ranks(ranks)} each saved {path}. If ranks write at the same time, the file is damaged; otherwise the "
                "last one overwrites the others.",
                *(f"  {name_ranks(who)}: torch.save at {at}" for at, who in lines if at),
                "Save on one rank (`if dist.get_rank() == 0:`), use team.save(), or use a separate file name on each rank.",
            ]
        ),
        ranks=tuple(ranks),
        places={rank: at for rank, at in places.items() if at},
    )
