"""What the tests of this folder run in several processes."""

import contextlib
import json
import signal
import subprocess
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lockstep


class SlowData(Dataset):
    """Each sample takes a while to read."""

    def __init__(self, num_samples, wait_s):
        self.num_samples = num_samples
        self.wait_s = wait_s

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        time.sleep(self.wait_s)
        return torch.ones(4), torch.ones(1)


class Sleeper(torch.autograd.Function):
    """A layer that sleeps in its backward pass."""

    @staticmethod
    def forward(ctx, x, wait_s):
        ctx.wait_s = wait_s
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.wait_s)
        return gradient, None


class SlowState:
    """An object whose state takes a while to read."""

    def __init__(self, wait_s):
        self.wait_s = wait_s

    def state_dict(self):
        time.sleep(self.wait_s)
        return {}

    def load_state_dict(self, state):
        pass


def train(num_steps, data_s=0.0, forward_s=0.0, backward_s=0.0, script_s=0.0, save_s=0.0, slow_rank=None):
    """Train with these delays, on ``slow_rank`` only if that is given. Returns the events of the
    run."""
    with lockstep.join(run_dir="run") as team:
        here = slow_rank is None or team.rank == slow_rank
        data = SlowData(8 * num_steps, data_s if here else 0.0)
        if not data_s:
            data = TensorDataset(torch.randn(8 * num_steps, 4), torch.randn(8 * num_steps, 1))
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, batch_size=8))
        team.register("slow", SlowState(save_s))
        for _ in team.epochs(1):
            for batch in loader:
                for x, y in batch.shards:
                    time.sleep(forward_s if here else 0.0)
                    out = Sleeper.apply(model[0](x), backward_s if here else 0.0)
                    team.backward((model[1](out) - y).square().mean())
                time.sleep(script_s if here else 0.0)
                optimizer.step()
                optimizer.zero_grad()
    return [json.loads(line) for line in (Path(team.run_dir) / "events.jsonl").read_text().splitlines()]


def end(launcher):
    """End a launcher at once: the first Ctrl-C waits for the step, which may never end."""
    while launcher.poll() is None:
        launcher.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(timeout=0.5)
