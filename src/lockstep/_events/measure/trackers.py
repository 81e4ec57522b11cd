"""Sends measurements to experiment trackers: TensorBoard, and modules with wandb's interface, such
as Weights & Biases and Trackio."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from typing_extensions import override

from lockstep._base.atomic import write_atomic
from lockstep._base.regular_files import read_bytes
from lockstep._base.reports import warn
from lockstep._base.shapes import fits, parse
from lockstep._base.trackers import OFF, TENSORBOARD
from lockstep._listener import Listener

TRAINING, EVALUATION, LOGGED = "training", "evaluation", "logged"
GROUPS = {"step": TRAINING, "evaluate": EVALUATION}
"""The group of values by kind of event. Values that are logged only outside of training steps have
a separate group, ``LOGGED``."""
_FILE_NAME = "trackers.json"
_MOST_BYTES = 1 << 20
_RETRY_S = 30.0


class Tracker:
    """Base class of trackers. Their methods do not raise."""

    def open(self) -> None:
        """Called before the first step, perhaps several times."""

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step, or the results of an evaluation after it. Steps come in
        order."""

    def close(self, *, failed: bool) -> None:
        """Finishes the output. May be called again."""


class Trackers(Listener):
    """The trackers of one process; there are none on ranks other than 0.

    Args:
        hyperparameters: where the script's hyperparameters are collected: ``batch_size``,
            ``epochs``, and the initial settings of each optimizer.
    """

    def __init__(self, trackers: Sequence[Tracker] = (), hyperparameters: dict[str, Any] | None = None) -> None:
        self._trackers = trackers
        self._in_steps = set[str]()
        """Names of values that were logged in training steps."""
        self._hyperparameters = {} if hyperparameters is None else hyperparameters

    @override
    def prepared(self, item: Any) -> None:
        if isinstance(item, Optimizer):
            numbers = {name: value for name, value in item.defaults.items() if isinstance(value, (bool, int, float, str))}
            self._hyperparameters.setdefault("optimizers", []).append({"type": type(item).__name__, **numbers})

    @override
    def prepared_loader(self, batches: Iterable[Any]) -> None:
        if isinstance(size := getattr(batches, "batch_size", None), int):
            self._hyperparameters.setdefault("batch_size", size)

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        if num_epochs is not None:
            self._hyperparameters.setdefault("epochs", num_epochs)
        for tracker in self._trackers:
            tracker.open()

    def write(self, kind: str, step: int, values: Mapping[str, float], apart: Sequence[str] = ()) -> None:
        """Writes the values of an event: of a ``step``, or of an evaluation (``evaluate``) after
        it. Steps come in order. ``apart``: the names of values of a step that were logged between
        passes, or after an evaluation."""
        if kind == "step":
            self._in_steps.update(values.keys() - set(apart))
        groups: dict[str, dict[str, float]] = {}
        for name, value in values.items():
            group = LOGGED if name in apart and name not in self._in_steps else GROUPS[kind]
            groups.setdefault(group, {})[name] = value
        for tracker in self._trackers:
            for group, grouped in groups.items():
                tracker.write(group, step, grouped)

    def close(self, *, failed: bool) -> None:
        """Closes all trackers at the end of the run."""
        for tracker in self._trackers:
            tracker.close(failed=failed)


class TensorBoard(Tracker):
    """The tracker for TensorBoard, if it is installed. Its files are opened with the first value:
    importing it takes about a second.

    Args:
        resumed_from: the step at which an interrupted run resumes; None: it is new.
        must: whether to warn if it is not installed, because the user has requested it.
    """

    def __init__(self, run_dir: Path, resumed_from: int | None, *, must: bool = False) -> None:
        self._run_dir = run_dir
        self._resumed_from = resumed_from
        self._must = must
        self._board: Any = None
        self._next_try_s = 0.0

    @override
    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Writes values. If the disk is full, warns and tries again later."""
        try:
            board = self._open()
            for name, value in values.items() if board is not None else ():
                board.add_scalar(f"{group}/{name}", value, step)
        except OSError as error:  # a full disk, say; errors of TensorBoard's own thread are raised here, too
            self.close(failed=False)
            self._next_try_s = time.monotonic() + _RETRY_S
            warn(
                f"cannot write TensorBoard's files in {self._run_dir}: {error}. Training continues, values go to "
                f"events.jsonl only, and the next try is in {_RETRY_S:.0f} s.",
                code="tracker-not-writable",
            )

    def _open(self) -> Any:
        if self._board is None and time.monotonic() >= self._next_try_s:
            self._board = False
            if importlib.util.find_spec("tensorboard") is None:
                if self._must:
                    warn(
                        "--track tensorboard: TensorBoard is not installed. To install it: pip install tensorboard",
                        code="tracker-missing",
                    )
            else:
                # TensorBoard may be too old, or broken: events.jsonl has all values.
                with contextlib.suppress(ImportError):
                    from torch.utils.tensorboard import SummaryWriter

                    # Later steps will be written again.
                    purge = None if self._resumed_from is None else self._resumed_from + 1
                    self._resumed_from = None
                    self._board = SummaryWriter(str(self._run_dir), purge_step=purge)
        return self._board or None

    @override
    def close(self, *, failed: bool) -> None:
        board, self._board = self._board, None
        if board:
            with contextlib.suppress(OSError):
                board.close()


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The information about the run that trackers record."""

    run_dir: Path
    project: str
    """The default name of the project."""
    settings: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    """The hyperparameters of the script. More become known until the first step."""
    is_again: bool
    """Whether an earlier launch has used the run directory."""
    aside: Callable[[], AbstractContextManager[None]]
    """A context that restores the random streams."""


class WandbLike(Tracker):
    """A tracker for a module with ``init``, ``log`` and ``finish``. After its first error, which is
    reported, it is no longer used, and training continues.

    Args:
        name: the name in ``RunConfig.track``.
    """

    def __init__(self, name: str, about: RunInfo) -> None:
        self._name, _, self._project = name.partition(":")
        self._about = about
        self._run: Any = None
        self._is_over = False
        self._known = self._read() if about.is_again else {}

    @override
    def open(self) -> None:
        if self._run is None:
            self._try("cannot be opened", self._open)

    @override
    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        self.open()
        if self._run is not None:
            row = {f"{group}/{name}": value for name, value in values.items()}
            self._try("cannot be written to", lambda: self._run.log(row, step=step))

    @override
    def close(self, *, failed: bool) -> None:
        if self._run is not None:
            finish = self._run.finish
            self._try("cannot be closed", lambda: finish(**_taken(finish, exit_code=int(failed))))
        self._run, self._is_over = None, True

    def _try(self, what: str, act: Callable[[], object]) -> None:
        if self._is_over:
            return
        try:
            # A library may draw random numbers, and results must not depend on the trackers.
            with self._about.aside():
                act()
        except (Exception, SystemExit) as error:
            self._is_over, self._run = True, None
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            warn(
                f"the tracker {self._name} {what}: {why}. Training continues without it; events.jsonl contains all values.",
                code="tracker-failed",
            )

    def _open(self) -> None:
        tracker: Any = importlib.import_module(self._name)
        about = self._about
        number = self._known.get(self._name) or secrets.token_hex(4)
        arguments = {
            "project": self._project or os.environ.get(f"{self._name.upper()}_PROJECT") or about.project,
            "name": about.run_dir.absolute().name,
            "config": {**about.settings, **about.hyperparameters},
            "dir": str(about.run_dir),
            "id": number,
            "resume": "allow",
        }
        taken = _taken(tracker.init, **arguments)
        # Without ids it identifies runs by name, also runs in other directories.
        if "id" not in taken and "name" in taken:
            taken["name"] = f"{arguments['name']}-{number}"
        run = tracker.init(**taken)
        self._run = run if callable(getattr(run, "log", None)) and callable(getattr(run, "finish", None)) else tracker
        write_atomic(about.run_dir / _FILE_NAME, json.dumps({**self._read(), self._name: number}) + "\n")

    def _read(self) -> dict[str, str]:
        try:
            known = parse(read_bytes(self._about.run_dir / _FILE_NAME, _MOST_BYTES))
        except (OSError, ValueError):
            return {}
        return known if fits(known, dict[str, str]) else {}


def _taken(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """The arguments that a function accepts."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    return {name: value for name, value in arguments.items() if name in {parameter.name for parameter in parameters}}


def trackers_for(track: Sequence[str] | None, about: RunInfo, resumed_from: int | None) -> list[Tracker]:
    """The trackers for ``RunConfig.track``: by default TensorBoard, if it is installed.

    Args:
        resumed_from: the step at which an interrupted run resumes; None: it is new.
    """
    if track is None:
        return [TensorBoard(about.run_dir, resumed_from)]
    names = [name for name in track if name != OFF]
    return [
        TensorBoard(about.run_dir, resumed_from, must=True) if name == TENSORBOARD else WandbLike(name, about)
        for name in names
    ]
