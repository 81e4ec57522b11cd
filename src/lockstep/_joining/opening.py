"""Finds the run of a launch: a new one, or an interrupted one and the checkpoint from which it
resumes.

The user repeats a command and expects the run to continue, without naming it. So the launch looks
through the earlier runs of the same script, newest first::

    for each run of the script:
        of another command, or unreadable    skip it (with a notice)
        finished                             stop: older interrupted runs are superseded
        interrupted, settings differ         skip it (with a notice)
        interrupted, in use                  skip it
        interrupted                          resume from its newest intact checkpoint
    none: create the next free runs/SCRIPT-N

Two rules prevent a wrong resume. A setting that was set explicitly must equal the run's birth,
since results depend on it. And every path holds the lock of the directory before it reads or writes
there, so that two launches cannot both resume one run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from lockstep._base.config import RUNS, RunConfig
from lockstep._base.errors import CheckpointError, ConfigError, os_error_text
from lockstep._base.nofollow import check_named
from lockstep._base.reports import Notice
from lockstep._plan.blocks import block
from lockstep._state.checkpoint.manifest import Manifest
from lockstep._state.checkpoint.store import Store
from lockstep._state.recovery.resuming import Checkpoint
from lockstep._state.rundir.fixed_settings import (
    Command,
    FixedSettings,
    read_fixed_settings,
    reconcile,
    write_fixed_settings,
)
from lockstep._state.rundir.lock import PATIENCE_S, RunLock, holder_of, last_job, last_launch
from lockstep._state.rundir.names import default_run_dir, earlier_run_dirs, rename_old_run
from lockstep._world.environment import World

_FINISHED, _INTERRUPTED = "finished", "interrupted"
_AFTER_LOSS_S = 120.0


@dataclass(kw_only=True)
class OpenRun:
    """A run, with the lock of its directory."""

    run_dir: Path
    birth: FixedSettings
    checkpoint: Checkpoint | None
    """The checkpoint from which it resumes; None: start at step 0."""
    lock: RunLock
    is_new: bool
    """Whether no launch has used the directory before."""
    notices: list[Notice] = field(default_factory=list)
    """Lines to print on rank 0."""


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What this launch asks for: its settings, command and processes."""

    config: RunConfig
    givers: Mapping[str, str]
    """Where the settings were set that do not have their default, as in ``AskedSettings``."""
    born_with: FixedSettings
    """The birth of a new run with the settings of this launch."""
    command: Command
    world: World

    def must_start_fresh(self, path: Path) -> bool:
        """Returns whether the run in a directory must not be resumed. (A restart resumes the run
        that this launch has begun.)"""
        return self.config.fresh and not self.has_begun(path)

    @property
    def is_named(self) -> bool:
        """Whether the run that this launch began before a restart can be distinguished from runs of
        other launches."""
        return bool(self.world.launch and self.world.restart) or bool(self.world.job and self.world.job.restart)

    def has_begun(self, path: Path) -> bool:
        """Returns whether this launch, or this Slurm job, began the run in a directory before a
        restart."""
        job = self.world.job
        if job is not None and job.restart > 0 and last_job(path) == job.name:
            # Concurrent steps of a batch script may have other numbers after a requeue.
            return self._is_of_command(path)
        return self.world.restart > 0 and last_launch(path) == self.world.launch

    def lock(self, path: Path, *, leave_no_name: bool = False, patience_s: float | None = None) -> RunLock:
        """Locks a directory for this launch. The lock records the launch's name, by which a restart
        finds its run.

        Raises:
            ConfigError: it is in use.
        """
        job = self.world.job
        names = ("", "") if leave_no_name else (self.world.launch, "" if job is None else job.name)
        if patience_s is not None:
            return RunLock(path, *names, patience_s=patience_s)
        # A file server may be slow to release the lock of a lost machine. The other ranks wait for
        # this one meanwhile, so it gives up at 0.8 of the timeout, before they do.
        after_loss_s = max(PATIENCE_S, min(_AFTER_LOSS_S, 0.8 * self.config.timeout_s))
        is_again = self.world.restart > 0 or (job is not None and job.restart > 0)
        return RunLock(path, *names, patience_s=after_loss_s if is_again else PATIENCE_S, far_patience_s=after_loss_s)

    def _is_of_command(self, path: Path) -> bool:
        try:
            contents = read_fixed_settings(path)
        except ConfigError:
            return True  # so that the damage is reported
        return contents is None or contents[1].is_like(self.command)


def open_run(launch: LaunchRequest) -> OpenRun:
    """Find or create the run of this launch. Called on rank 0 only.

    With ``run_dir``, the run in that directory is resumed, if there is one. Without, the newest
    interrupted run of the same command is resumed that has a checkpoint, was created with settings
    that this launch does not contradict, and is not in use.

    Raises:
        ConfigError: the directory is in use or cannot be written, or a setting differs from the
            run's birth.
        CheckpointError: the run has checkpoints, but none of them is usable.
    """
    try:
        if launch.config.run_dir is not None:
            return _open_named(Path(launch.config.run_dir), launch)
        check_named(RUNS)
        notices: list[Notice] = []
        earlier = earlier_run_dirs(RUNS, launch.command.script)
        if launch.is_named:
            for path in earlier:
                if launch.has_begun(path):
                    return _open_named(path, launch)
        # What runs without a script (a notebook, a function) is not recognized at its next launch.
        for path in earlier if launch.command.script else ():
            state = None if launch.must_start_fresh(path) else _state_of(path, launch, notices)
            if state == _FINISHED:
                break  # earlier interrupted runs were superseded by it
            run = _try_resume(path, launch, notices) if state == _INTERRUPTED else None
            if run is not None:
                return run
        path = default_run_dir(RUNS, launch.command.script)
        lock = launch.lock(path)
        write_fixed_settings(path, launch.born_with, launch.command)
        return OpenRun(run_dir=path, birth=launch.born_with, checkpoint=None, lock=lock, is_new=True, notices=notices)
    except OSError as error:
        raise ConfigError(
            f"cannot use the run directory: {error.filename}: {os_error_text(error)}. Set another one with run_dir= or "
            "--run-dir.",
            code="run-dir-unusable",
        ) from error


def _open_named(path: Path, launch: LaunchRequest) -> OpenRun:
    check_named(path)
    path.mkdir(parents=True, exist_ok=True)
    must_start_fresh = launch.must_start_fresh(path)
    # With --fresh, the name of this launch must not get into the directory of the old run: a
    # restart between the lock and the move would take that run for the one that this launch has
    # begun.
    lock = launch.lock(path, leave_no_name=must_start_fresh)
    try:
        notices: list[Notice] = []
        if must_start_fresh:
            if _is_in_use(path):
                old_path = rename_old_run(path)
                notices.append(Notice("old-run-moved", f"moved the old run from {path} to {old_path}"))
                path.mkdir()
            # The first lock has moved with the old directory, or has no name.
            lock.release()
            lock = launch.lock(path)
        run = _resume(path, launch, lock, notices)
        if run is None:
            write_fixed_settings(path, launch.born_with, launch.command)
            return OpenRun(run_dir=path, birth=launch.born_with, checkpoint=None, lock=lock, is_new=True, notices=notices)
        if run.checkpoint is None:
            notices.append(Notice("no-checkpoint", f"run {path} has no checkpoint; starting it over"))
        return run
    except BaseException:
        lock.release()
        raise


def _is_in_use(path: Path) -> bool:
    """Returns whether a directory contains files that must not be mixed with a new run."""
    # The lock is this launch's, by now.
    return any(entry.name != "lock" for entry in path.iterdir())


def _state_of(path: Path, launch: LaunchRequest, notices: list[Notice]) -> str | None:
    """Returns the state of an earlier run of this command; None: it belongs to another command, or
    cannot be resumed."""
    store = Store(path)
    newest = store.newest()
    is_saved = newest is not None or store.has_unfinished()
    try:
        contents = read_fixed_settings(path)
    except ConfigError as error:
        if is_saved:
            _note(notices, "run-unreadable", f"{path} is left unchanged: {error}")
        return None
    command = launch.command
    if contents is None or not is_saved:
        return None
    # Not while it is in use: such a run is being trained, and cannot be resumed.
    if command.script and contents[1].differs_in_args(command) and holder_of(path) is None:
        began = shlex.join(contents[1].args) or "none"
        _note(
            notices,
            "other-arguments",
            f"{path} is a run of the same script with other arguments ({began}). To resume it: --run-dir {path}",
        )
    if not contents[1].is_like(command):
        return None
    # A finished run ends the search only if it is of the same settings: otherwise an interrupted
    # one before it may still be what the user wants to resume.
    if newest is not None and _is_finished(newest):
        return None if contents[1].differing(command) else _FINISHED
    differing = contents[1].differing(command, launch.config.allow)
    if differing:
        changes = [f"{name}: {_given(command, name)} now, {_given(contents[1], name)} then" for name in differing]
        _note(
            notices,
            "other-settings",
            f"{path} was interrupted, but its settings differ ({'; '.join(changes)}). To resume it: --run-dir {path}",
        )
        return None
    return _INTERRUPTED


def _given(command: Command, name: str) -> str:
    return repr(command.settings[name]) if name in command.settings else "not set"


def _note(notices: list[Notice], code: str, why: str) -> None:
    if not notices:  # only about the newest of several runs
        notices.append(Notice(code, f"starting a new run: {why}"))


def _try_resume(path: Path, launch: LaunchRequest, notices: list[Notice]) -> OpenRun | None:
    """Resumes an interrupted run of this command, if possible."""
    try:
        contents = read_fixed_settings(path)
        assert contents is not None
        # Before the lock, so that a run that does not fit is not locked. With little patience: if
        # another launch trains there, an earlier run may be free.
        _reconcile(path, contents[0], launch)
        lock = launch.lock(path, patience_s=0.2)
    except ConfigError as error:
        _note(notices, "run-not-resumable", f"{path} is left unchanged: {error}")
        return None
    try:
        # A new list: notices so far say that a new run starts, and why.
        run = _resume(path, launch, lock, [])
    except BaseException:
        lock.release()
        raise
    if run is None or run.checkpoint is None:  # it was killed while writing its first checkpoint
        lock.release()
        return None
    return run


def _reconcile(path: Path, birth: FixedSettings, launch: LaunchRequest) -> FixedSettings:
    config = launch.config
    reconciled = reconcile(path, birth, launch.givers, launch.born_with, config.allow, strategy=config.strategy)
    block(0, launch.world.world_size, reconciled.shards)  # more processes than shards is an error
    return reconciled


def _is_finished(checkpoint: Path) -> bool:
    try:
        return Manifest.read(checkpoint).finished
    except CheckpointError:
        return False  # damaged: the checkpoints before it may be usable


def _resume(path: Path, launch: LaunchRequest, lock: RunLock, notices: list[Notice]) -> OpenRun | None:
    """Returns the run in a directory; None: there is none. Its settings are taken from its newest
    checkpoint, which has a checksum; until there is one, from ``birth.json``."""
    store = Store(path)
    store.clean()
    sound = store.newest_undamaged(lambda text: notices.append(Notice("checkpoint-damaged", text)))
    if sound is None:
        contents = read_fixed_settings(path)
        if contents is None:
            return None
        birth = _reconcile(path, contents[0], launch)
        return OpenRun(run_dir=path, birth=birth, checkpoint=None, lock=lock, is_new=False, notices=notices)
    directory, manifest = sound
    # A checkpoint of an older version lacks newer settings: use this launch's.
    known = launch.born_with.as_json() | dict(manifest.birth)
    born = FixedSettings(**{each.name: known[each.name] for each in fields(FixedSettings)})
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.time_s))
    code, state = ("already-finished", "already finished at") if manifest.finished else ("resumes", "resumes after")
    notices.append(
        Notice(
            code,
            f"run {path} {state} step {manifest.step} (checkpoint of {when}). To start over: --fresh (fresh=True).",
        )
    )
    return OpenRun(
        run_dir=path,
        birth=_reconcile(path, born, launch),
        checkpoint=Checkpoint(path=directory, manifest=manifest),
        lock=lock,
        is_new=False,
        notices=notices,
    )
