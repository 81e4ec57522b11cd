"""Runs scripts of the corpus in a process of a crew, one after another, and takes down what each left behind."""

import contextlib
import gc
import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

import lockstep

SCRIPTS = Path(__file__).parent / "scripts"
PATIENCE_S = 120.0


@dataclass
class Outcome:
    """What one script came to on one rank."""

    bits: dict[str, str] = field(default_factory=dict)
    """Digests of all that its ``main()`` returned, by where it stands in it."""
    error: str = ""
    """The exception that ended it: the names of its classes, and the message."""
    is_finite: bool = True
    """Whether no tensor among the results has a NaN or an infinity: else equal bits would say little."""
    num_tensors: int = 0
    seconds: float = 0.0
    """Of this process's processor."""


def run(names, nproc, folder, function="main"):
    """What each script came to in this process, by name. Every rank of the crew must call it with the same arguments.

    Args:
        names: of the scripts.
        nproc: how many ranks there are.
        folder: for the directories of their runs, which it must be the first to use.
        function: of the script.
    """
    for name in names:
        load(name)
    gc.freeze()  # a run collects garbage when it closes its process group, and need not go through all of PyTorch for it
    outcomes = {}
    for name in names:
        outcomes[name] = run_one(name, folder, function)
        wait_for_all(Path(folder, "done", name), nproc)
    return outcomes


def run_one(name, folder, function):
    outcome, begin = Outcome(), time.process_time()
    argv, sys.argv = sys.argv, [str(SCRIPTS / f"{name}.py")]
    torch.seed()  # 64 random bits, as in a process that has just begun
    try:
        with closing_teams(f"{folder}/{name}"):
            take_down(outcome, "", getattr(load(name), function)())
    except Exception as error:
        outcome.error = f"{' '.join(kind.__name__ for kind in type(error).__mro__)}: {error}"
    finally:
        sys.argv = argv
    if outcome.error:
        gc.collect()  # what the traceback held: while a connection lives, the other ranks wait
    outcome.seconds = time.process_time() - begin
    return outcome


def wait_for_all(folder, nproc):
    """An error may end a script sooner on one rank than on others: the next must not begin before it has ended on all."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + PATIENCE_S
    while len(list(folder.iterdir())) < nproc:
        assert time.monotonic() < deadline, f"{folder.name} has not ended on all ranks"
        time.sleep(0.002)


def load(name):
    """The script as a module of its own, under a name that nothing else has."""
    known = f"idiom_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, SCRIPTS / f"{name}.py")
        sys.modules[known] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[known]


@contextlib.contextmanager
def closing_teams(run_dir):
    """Scripts leave their teams to the end of the process: here the next script comes first."""
    join, teams = lockstep.join, []

    def remember(**settings):
        teams.append(join(**{"run_dir": run_dir, "checkpoint_every": "off", **settings}))
        return teams[-1]

    lockstep.join = remember
    try:
        yield
    finally:
        lockstep.join = join
        for team in teams:
            team.close()  # inside an exception's handling it says nothing to the others


def take_down(outcome, name, value):
    """Digest a result, whatever it is made of: models and optimizers by their states, gradients too."""
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
