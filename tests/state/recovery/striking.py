"""What training scripts that are to be disturbed share: data, a digest of the end, and the fault,
from inside their process.

The fault is in the environment, as JSON: ``FAULT={"at": "step", "number": 5, "rank": 1, "what":
"kill"}``. It strikes in the first start of a launch only, never after a restart.

- ``at``: ``shard``, ``step``, ``tail`` or another word (inside ``batch.shards``, in the loop's
  body, after the loop: where the script calls ``strike``), or what the writing of a checkpoint
  calls: ``replace`` (``os.replace``), ``fsync`` (``os.fsync``), ``save`` (of a safetensors file).
- ``number``: of the step, or of the call, from 1, counted in this process since the run was joined.
- ``when``: ``before`` or ``after`` the call; ``within`` (a file of which half was written).
- ``what``: ``kill`` or ``stop`` this process (SIGKILL, SIGSTOP), ``kill all``, ``kill launcher``;
  or ``fail``: the call raises the error of a full disk, ``times`` times in a row. Or the name of a
  signal, for all in ``to``: ``me``, ``ranks``, ``launcher``, ``tree`` (launcher, fork server,
  ranks, loader workers).
- ``first``: of ``shard``, ``step`` and ``tail``: wait until so many checkpoints are there.
"""

import errno
import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FAULT = json.loads(os.environ.get("FAULT", "null"))
FEATURES, CLASSES = 6, 2


def sample(index):
    generator = torch.Generator().manual_seed(index)
    features = torch.randn(FEATURES, generator=generator)
    # The second part is augmentation: it comes from the streams of the run.
    return features + 0.1 * torch.randn(FEATURES), (features.sum() > 0).long()


class Samples(Dataset):
    def __init__(self, length=40):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return sample(index)


def samples(length=40, batch=8, **options):
    """A loader: five steps an epoch."""
    return DataLoader(Samples(length), batch_size=batch, **{"shuffle": True, **options})


def network(hidden=8):
    return nn.Sequential(
        nn.Linear(FEATURES, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, CLASSES)
    )


def digest(*things):
    found = hashlib.sha256()
    for thing in things:
        state = thing.state_dict() if hasattr(thing, "state_dict") else thing
        for name, value in sorted(state.items()):
            found.update(name.encode() + (_bytes(value) if isinstance(value, torch.Tensor) else repr(value).encode()))
    return found.hexdigest()


def _bytes(tensor):
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()  # NumPy has no bfloat16


def say_last_words(team, *things, **more):
    """What must be the same, whatever has happened meanwhile."""
    team.print("last words", json.dumps({"digest": digest(*things), "step": team.step, **more}, sort_keys=True))


def arm(team):
    """Make the fault ready. To be called by every rank, right after joining."""
    everybody = team.all_gather_object(os.getpid())
    if FAULT is None or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" or FAULT.get("rank", 0) != team.rank:
        return
    FAULT["everybody"] = everybody
    if FAULT["at"] in ("replace", "fsync"):
        setattr(os, FAULT["at"], _striking(getattr(os, FAULT["at"])))
    elif FAULT["at"] == "save":
        from lockstep._state.checkpoint import writer

        writer.write_tensors = _striking(writer.write_tensors)


def strike(team, at="step"):
    """To be called in the loop's body; with ``shard`` inside ``batch.shards``; with ``tail`` after
    the loop, where the number is that of the last step."""
    if FAULT is None or "everybody" not in FAULT:
        return
    # a slow disk would skip what is due
    if at == "step" and FAULT.get("paced") and team.step < FAULT["number"]:
        # What falls due while the last one is written is saved after this step: to wait for it here
        # would be for ever.
        has_checkpoints(team, min(FAULT["first"], (team.step - 1) // 2), limit_s=5)
    if (FAULT["at"], FAULT["number"]) != (at, team.step):
        return
    wait_for_checkpoints(team, FAULT.get("first", 0))
    _strike()


def wait_for_checkpoints(team, number):
    assert has_checkpoints(team, number, limit_s=100), "no checkpoint came"


def has_checkpoints(team, number, limit_s):
    """Whether there are so many within some seconds."""
    deadline = time.monotonic() + limit_s
    while len(list(Path(team.run_dir, "checkpoints").glob("step-*"))) < number:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _striking(call):
    lock, calls = threading.Lock(), []

    def struck(*args, **options):
        with lock:
            calls.append(None)
            number = len(calls)
        if FAULT["what"] == "fail" and FAULT["number"] <= number < FAULT["number"] + FAULT.get("times", 1):
            raise OSError(errno.ENOSPC, "No space left on device (the test says so)")
        strikes = FAULT["what"] != "fail" and number == FAULT["number"]
        if strikes and FAULT.get("when") == "before":
            _strike()
        result = call(*args, **options)
        if strikes and FAULT.get("when") == "within":
            path = args[0]
            os.truncate(path, path.stat().st_size // 2)
        if strikes:
            _strike()
        return result

    return struck


def _strike():
    what = FAULT["what"]
    if what.startswith("SIG"):
        # From a process that is nobody's parent, as a scheduler is.
        subprocess.run(["sh", "-c", f"kill -{what[3:]} {' '.join(map(str, _addressees(FAULT['to'])))}"], check=True)
        return
    if what == "kill launcher":
        # The fork server that this process was forked from is a child of the launcher.
        os.kill(psutil.Process().parents()[1].pid, signal.SIGKILL)
        time.sleep(30)
    if what == "kill all":
        for pid in FAULT["everybody"]:
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGSTOP if what == "stop" else signal.SIGKILL)


def _addressees(to):
    # the ranks are forked from a server, which is the launcher's child
    server, launcher = psutil.Process().parents()[:2]
    tree = [launcher.pid, server.pid, *(child.pid for child in server.children(recursive=True))]
    return {"me": [os.getpid()], "ranks": FAULT["everybody"], "launcher": [launcher.pid], "tree": tree}[to]
