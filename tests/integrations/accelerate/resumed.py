"""A training that is killed and resumed: the numbers of the script and of lockstep's state at the
end."""

import hashlib
import os
import signal
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lockstep._base.errors import UsageError
from lockstep.integrations.accelerate import Accelerator


def die(accelerator):
    """SIGKILL, once a checkpoint is there."""
    deadline = time.monotonic() + 60
    while not Path("run/checkpoints/newest").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    accelerator.wait_for_everyone()
    os.kill(os.getpid(), signal.SIGKILL)


class Counted:
    """What a script registers."""

    number = 0

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


def train(kill_at=0):
    torch.set_num_threads(1)
    accelerator = Accelerator(
        cpu=True, shards=5, gradient_accumulation_steps=3, run_dir="run", checkpoint_every=1, progress="off"
    )
    torch.manual_seed(3)
    x = torch.randn(40, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)
    data = TensorDataset(x, x[:, :3].argmax(1))
    loader, test = DataLoader(data, 8, shuffle=True), DataLoader(data, 9)
    model, optimizer, loader, test, schedule = accelerator.prepare(model, optimizer, loader, test, schedule)
    kept, counted = accelerator.team.state(total=0.0, lines=[]), Counted()
    accelerator.register_for_checkpointing(counted)
    for _ in accelerator.epochs(3):
        model.train()
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            kept.total += loss.item()
            counted.number += 1
            if accelerator.team.step == kill_at:
                die(accelerator)
        model.eval()
        right = 0
        for inputs, labels in test:
            found, labels = accelerator.gather_for_metrics((model(inputs).argmax(1), labels))
            right += (found == labels).sum().item()
        kept.lines = [*kept.lines, [kept.total, right, schedule.get_last_lr()[0], counted.number]]
        kept.total = 0.0
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return kept.lines, hashlib.sha256(weights).hexdigest()[:16]


def count_from_the_first_epoch(kill_at=0):
    """Counts epochs by ``range``. Returns the code of the error, if there is one."""
    accelerator = Accelerator(cpu=True, shards=2, run_dir="run", checkpoint_every=1, progress="off")
    model = nn.Linear(3, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(torch.ones(8, 3), 4)
    )
    try:
        for _ in range(3):
            for batch in loader:
                accelerator.backward(model(batch).mean())
                optimizer.step()
                if accelerator.team.step == kill_at:
                    die(accelerator)
    except Exception as error:
        print(error, flush=True)
        return getattr(error, "code", type(error).__name__)
    return None


def accumulate_by_hand(kill_at=0):
    """Accumulates gradients of two batches, counted by ``enumerate``. Returns the code of the
    error, if there is one, and the number of warnings."""
    accelerator = Accelerator(cpu=True, shards=2, run_dir="run", checkpoint_every=1, progress="off")
    model = nn.Linear(3, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(torch.ones(20, 3), 4)
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            for _ in accelerator.epochs(2):
                for number, batch in enumerate(loader):
                    accelerator.backward(model(batch).mean() / 2)
                    if number % 2 == 1 or number == len(loader) - 1:
                        optimizer.step()
                        optimizer.zero_grad()
                    if accelerator.team.step == kill_at:
                        die(accelerator)
        except UsageError as error:
            return error.code, None
    return None, sum("accelerator.accumulate" in str(one.message) for one in found)
