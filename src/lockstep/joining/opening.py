"""Which run a launch is: a new one, or one that was interrupted, and from which of its checkpoints that goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.checkpoint.manifest import Manifest
from lockstep.checkpoint.store import Store
from lockstep.config import RunConfig
from lockstep.errors import CheckpointError, ConfigError
from lockstep.plan.shards import block
from lockstep.recovery.resuming import Checkpoint
from lockstep.rundir.birth import Birth, Command, is_damaged, read_birth, reconcile, write_birth
from lockstep.rundir.lock import PATIENCE_S, RunLock, last_job, last_launch
from lockstep.rundir.names import default_run_dir, earlier_run_dirs, rename_old_run
from lockstep.world import World

_PARENT = Path("runs")
_FINISHED, _INTERRUPTED = "finished", "interrupted"
_AFTER_LOSS_S = 120.0


@dataclass(kw_only=True)
class OpenRun:
    """A run, and this launch's right to write in its directory."""

    run_dir: Path
    birth: Birth
    checkpoint: Checkpoint | None
    """None: it begins at its beginning."""
    lock: RunLock
    is_new: bool
    notices: list[str] = field(default_factory=list)
    """What the user should know."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What this launch was asked for."""

    config: RunConfig
    explicit: Mapping[str, Any]
    """The settings that were given by name, on the command line or in the script."""
    born_with: Birth
    """The birth of a new run with these settings."""
    command: Command
    world: World

    def begins_anew(self, path: Path) -> bool:
        """Whether the run in a directory must not be resumed. (A restart resumes what this launch has begun.)"""
        return self.config.fresh and not self.has_begun(path)

    @property
    def is_named(self) -> bool:
        """Whether what it has begun before it was started again can be told from what others have."""
        return bool(self.world.launch and self.world.restart) or bool(self.world.job and self.world.job.restart)

    def has_begun(self, path: Path) -> bool:
        """Whether the run in a directory is what this launch, or this job of Slurm, ran before it was started again."""
        job = self.world.job
        if job is not None and job.restart > 0 and last_job(path) == job.name:
            # Steps that a batch script starts side by side may have changed their numbers.
            return self._is_of_command(path)
        return self.world.restart > 0 and last_launch(path) == self.world.launch

    def lock(self, path: Path, *, leave_no_name: bool = False, patience_s: float | None = None) -> RunLock:
        """Lock a directory for this launch; without its name what has the name is what it has begun."""
        job = self.world.job
        names = ("", "") if leave_no_name else (self.world.launch, "" if job is None else job.name)
        if patience_s is not None:
            return RunLock(path, *names, patience_s=patience_s)
        # A file server may be slow to free the lock of a machine that was lost. (The other ranks wait for this one meanwhile.)
        after_loss_s = max(PATIENCE_S, min(_AFTER_LOSS_S, 0.8 * self.config.timeout_s))
        is_again = self.world.restart > 0 or (job is not None and job.restart > 0)
        return RunLock(path, *names, patience_s=after_loss_s if is_again else PATIENCE_S, far_patience_s=after_loss_s)

    def _is_of_command(self, path: Path) -> bool:
        try:
            found = read_birth(path)
        except ConfigError:
            return True  # that it is damaged shall be said
        return found is None or found[1].is_like(self.command)


def open_run(launch: Launch) -> OpenRun:
    """Find or make the run of this launch. To be called by one process of it.

    With ``run_dir`` given, the run in that directory goes on, if there is one. Without, the newest interrupted run of the
    same command does that has a checkpoint, and may: it was born with settings that this launch does not contradict, and no
    other launch runs in it.

    Raises:
        ConfigError: the directory is in use, or cannot be written; a setting differs from the run's birth.
        CheckpointError: the run has checkpoints, and none of them can be used.
    """
    try:
        if launch.config.run_dir is not None:
            return _open_named(Path(launch.config.run_dir), launch)
        notices: list[str] = []
        earlier = earlier_run_dirs(_PARENT, launch.command.script)
        if launch.is_named:
            for path in earlier:
                if launch.has_begun(path):
                    return _open_named(path, launch)
        for path in earlier if launch.command.script else ():
            state = None if launch.begins_anew(path) else _state_of(path, launch, notices)
            if state == _FINISHED:
                break  # what was interrupted before it was abandoned for it
            found = _take_up(path, launch, notices) if state == _INTERRUPTED else None
            if found is not None:
                return found
        path = default_run_dir(_PARENT, launch.command.script)
        lock = launch.lock(path)
        write_birth(path, launch.born_with, launch.command)
        return OpenRun(run_dir=path, birth=launch.born_with, checkpoint=None, lock=lock, is_new=True, notices=notices)
    except OSError as error:
        raise ConfigError(
            f"the run directory cannot be used: {error}. Give another one with run_dir= or --run-dir."
        ) from error


def _open_named(path: Path, launch: Launch) -> OpenRun:
    path.mkdir(parents=True, exist_ok=True)
    begins_anew = launch.begins_anew(path)
    lock = launch.lock(path, leave_no_name=begins_anew)
    try:
        notices: list[str] = []
        if begins_anew:
            if _holds_something(path):
                other = rename_old_run(path)
                notices.append(f"the run that was in {path} is now in {other}")
                path.mkdir()
            lock.release()
            lock = launch.lock(path)
        birth = _find_birth(path, launch, notices)
        if birth is None:
            write_birth(path, launch.born_with, launch.command)
            return OpenRun(run_dir=path, birth=launch.born_with, checkpoint=None, lock=lock, is_new=True, notices=notices)
        run = _go_on(path, _reconcile(path, birth, launch), lock, notices)
        if run.checkpoint is None:
            notices.append(f"run {path} has no checkpoint yet: it begins anew")
        return run
    except BaseException:
        lock.release()
        raise


def _find_birth(path: Path, launch: Launch, notices: list[str]) -> Birth | None:
    """The birth of the run in a directory: out of its own file or, where that is missing or damaged, out of a checkpoint."""
    damage: ConfigError | None = None
    try:
        found = read_birth(path)
        if found is not None:
            return found[0]
    except ConfigError as error:
        if not is_damaged(path):
            raise
        damage = error
    store = Store(path)
    sound = store.newest_sound(notices.append) if store.newest() is not None else None
    if sound is not None:
        birth = Birth(**sound[1].birth)
        write_birth(path, birth, launch.command)
        notices.append(
            f"the run's birth.json was {'missing' if damage is None else 'damaged'}: written again from {sound[0]}"
        )
        return birth
    if damage is not None:
        raise damage
    return None


def _holds_something(path: Path) -> bool:
    """Whether something is in a directory that a new run must not be mixed with."""
    return any(entry.name != "lock" for entry in path.iterdir())


def _state_of(path: Path, launch: Launch, notices: list[str]) -> str | None:
    """What became of an earlier run of this command; None: it is one of another, or nothing of it is left."""
    store = Store(path)
    newest = store.newest()
    if newest is None and not store.has_unfinished():
        return None
    try:
        found = read_birth(path)
    except ConfigError as error:
        _note(notices, f"{path} stays as it is: {error}")
        return None
    command = launch.command
    if found is None or not found[1].is_like(command):
        return None
    if newest is not None and _is_finished(newest):
        return None if found[1].differing(command) else _FINISHED
    differing = found[1].differing(command, launch.config.allow)
    if differing:
        told = [f"{name}: {_given(command, name)} now, {_given(found[1], name)} then" for name in differing]
        _note(
            notices,
            f"{path} was interrupted, and has other settings ({'; '.join(told)}). To resume that one: --run-dir {path}",
        )
        return None
    return _INTERRUPTED


def _given(command: Command, name: str) -> str:
    return repr(command.settings[name]) if name in command.settings else "not given"


def _note(notices: list[str], why: str) -> None:
    if not notices:  # of many, the newest is enough to hear of
        notices.append(f"this is a new run: {why}")


def _take_up(path: Path, launch: Launch, notices: list[str]) -> OpenRun | None:
    """Go on with an interrupted run of this command, if that may be."""
    try:
        found = read_birth(path)
        assert found is not None
        birth = _reconcile(path, found[0], launch)
        lock = launch.lock(path, patience_s=0.2)
    except ConfigError as error:
        _note(notices, f"{path} stays as it is: {error}")
        return None
    try:
        run = _go_on(path, birth, lock, notices)
    except BaseException:
        lock.release()
        raise
    if run.checkpoint is None:  # it was killed while it wrote its first one
        lock.release()
        return None
    return run


def _reconcile(path: Path, birth: Birth, launch: Launch) -> Birth:
    found = reconcile(path, birth, launch.explicit, launch.born_with, launch.config.allow)
    block(0, launch.world.world_size, found.shards)  # more processes than shards is an error
    return found


def _is_finished(checkpoint: Path) -> bool:
    try:
        return Manifest.read(checkpoint).finished
    except CheckpointError:
        return False  # a damaged one: what there is before it shall be looked at


def _go_on(path: Path, birth: Birth, lock: RunLock, notices: list[str]) -> OpenRun:
    store = Store(path)
    store.clean()
    sound = store.newest_sound(notices.append)
    if sound is None:
        return OpenRun(run_dir=path, birth=birth, checkpoint=None, lock=lock, is_new=False, notices=notices)
    directory, manifest = sound
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.time_s))
    state = "had come to its end at" if manifest.finished else "resumes after"
    notices.append(f"run {path} {state} step {manifest.step} (checkpoint of {when}). To start anew: --fresh, or fresh=True.")
    found = Checkpoint(path=directory, manifest=manifest)
    return OpenRun(run_dir=path, birth=birth, checkpoint=found, lock=lock, is_new=False, notices=notices)
