"""Runs idioms in a process of a crew, one after another, and takes down what each left behind."""

import contextlib
import gc
import hashlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from refusing import Refusing
from stand_in import Plain
from table import ROWS
from torch.optim.optimizer import register_optimizer_step_post_hook

import lockstep
from lockstep._data import changed_samples, worker_copies
from lockstep._state.recovery import moving_tensors

PATIENCE_S = 120.0


@dataclass
class Outcome:
    """What one idiom came to on one rank."""

    bits: dict[str, str] = field(default_factory=dict)
    """Digests of all that its function returned, by where it stands in it."""
    error: str = ""
    """The exception that ended it: the names of its classes, its code, and the message."""
    is_finite: bool = True
    """Whether no tensor among the results has a NaN or an infinity: else equal bits would say
    little."""
    num_tensors: int = 0
    steps: int = 0
    """Taken by its last team."""
    seconds: float = 0.0
    """Of this process's processor."""


def run(names, nproc, folder, is_plain=False):
    """What each idiom came to in this process, by name. Every rank of the crew must call it with
    the same arguments.

    Args:
        names: of the idioms.
        nproc: how many ranks there are.
        folder: for the directories of their runs, which it must be the first to use.
        is_plain: to run them without lockstep.
    """
    idioms = {idiom.name: idiom for idiom in ROWS}
    outcomes, num_modules = {}, 0
    for name in names:
        if num_modules < len(sys.modules):
            # A run collects garbage when it closes its process group, and need not go through all
            # of PyTorch for it.
            gc.freeze()
            num_modules = len(sys.modules)
        outcomes[name] = run_one(idioms[name], f"{folder}/{name}", is_plain)
        wait_for_all(Path(folder, "done", name), nproc)
    return outcomes


def run_refusing(names, folder):
    """The outcomes in this process, alone, where what PyTorch refuses on a GPU is an error."""
    idioms = {idiom.name: idiom for idiom in ROWS}
    with Refusing("cpu"):
        return {name: run_one(idioms[name], f"{folder}/{name}") for name in names}


def watch(names, folder):
    """What is said in this process of tensors that move with the steps, and of samples that are
    written to, by idiom."""
    idioms, said = {idiom.name: idiom for idiom in ROWS}, {}
    for name in names:
        lines = said[name] = []
        for module in (changed_samples, moving_tensors, worker_copies):
            module.say = lines.append
        outcome = run_one(idioms[name], f"{folder}/{name}", checkpoint_every=10**6)
        assert not outcome.error, outcome
    return said


class Interrupted(BaseException):
    """Passes through an idiom's own ``except Exception``."""


def run_in_two(names, folder, step_of):
    """What each idiom came to in this process, alone, up to an interruption and in a second launch,
    and what was said before.

    Args:
        names: of the idioms.
        folder: for the directories of their runs.
        step_of: for each name the step in which the first optimizer that steps is interrupted.
            Checkpoints are from before.
    """
    idioms, outcomes = {idiom.name: idiom for idiom in ROWS}, {}
    for name in names:
        said = Path(folder, f"{name}.txt")
        said.parent.mkdir(parents=True, exist_ok=True)
        with said.open("w") as file, written_to(file):
            first = run_one(idioms[name], f"{folder}/{name}", checkpoint_every=1, stop_at=step_of[name])
        outcomes[name] = first, said.read_text(), run_one(idioms[name], f"{folder}/{name}", checkpoint_every=1)
    return outcomes


@contextlib.contextmanager
def written_to(file):
    """Everything that this process prints to standard error, also past Python's stream."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def run_one(idiom, run_dir, is_plain=False, checkpoint_every="off", stop_at=0):
    """``stop_at``: the step that is interrupted; 0: none."""
    outcome, begin = Outcome(), time.process_time()
    argv, sys.argv = sys.argv, [f"{idiom.name}.py"]
    torch.seed()  # 64 random bits, as in a process that has just begun
    try:
        with joining(run_dir, {"checkpoint_every": checkpoint_every, **idiom.settings}, stop_at) as (join, teams):
            given = Plain() if is_plain else join if idiom.joins else join()
            take_down(outcome, "", idiom.function(given))
            outcome.steps = max((team.step for team in teams), default=0)
    except (Exception, Interrupted) as error:
        kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
        outcome.error = f"{kinds} [{getattr(error, 'code', '')}]: {error}"
    finally:
        sys.argv = argv
    if outcome.error:
        gc.collect()  # what the traceback held: while a connection lives, the other ranks wait
    outcome.seconds = time.process_time() - begin
    return outcome


def wait_for_all(folder, nproc):
    """An error may end an idiom sooner on one rank than on others: the next must not begin before
    it has ended on all."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + PATIENCE_S
    while len(list(folder.iterdir())) < nproc:
        assert time.monotonic() < deadline, f"{folder.name} has not ended on all ranks"
        time.sleep(0.002)


@contextlib.contextmanager
def joining(run_dir, settings, stop_at=0):
    """How to join, and the teams that have. (Idioms leave theirs to the end of the process, and
    here the next comes first.)"""
    teams = []

    def join():
        teams.append(lockstep.join(run_dir=run_dir, **settings))
        return teams[-1]

    def interrupt(*_):
        if stop_at and teams and teams[-1].step == stop_at:
            raise Interrupted

    stepped = register_optimizer_step_post_hook(interrupt)
    try:
        yield join, teams
    finally:
        stepped.remove()
        for team in teams:
            team.close()  # inside an exception's handling it says nothing to the others


def take_down(outcome, name, value):
    """Digest a result, whatever it is made of: models and optimizers by their states, gradients
    too."""
    if isinstance(value, torch.nn.Module):
        parameters = dict(value.named_parameters())
        take_down(outcome, f"{name} weights", {**parameters, **dict(value.named_buffers())})
        take_down(outcome, f"{name} gradients", {key: p.grad for key, p in parameters.items()})
    elif hasattr(value, "state_dict"):
        take_down(outcome, f"{name} state", value.state_dict())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            take_down(outcome, f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            take_down(outcome, f"{name}[{number}]", item)
    elif isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        data = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        outcome.bits[name] = f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()[:16]}"
        outcome.is_finite &= bool(value.isfinite().all())
        outcome.num_tensors += 1
    else:
        outcome.bits[name] = value.hex() if isinstance(value, float) else repr(value)


def differences(one, other):
    """Where two outcomes' results differ."""
    names = one.bits.keys() | other.bits.keys()
    return sorted(name for name in names if one.bits.get(name) != other.bits.get(name))
