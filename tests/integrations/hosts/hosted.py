"""A training that a library drives: it counts steps to ``len(loader)``, keeps its own state, and
reports where its epochs begin and end. ``hosted.py HOW``: how the loop ends (``whole``, ``break``,
``break pass``), or ``two passes`` in each epoch.

The last line has what it has come to. CATCH=STEP: an error leaves the loop there, and is caught.
KILL=STEP: SIGKILL there, once a checkpoint is there. Each restore is printed.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

HOW = sys.argv[1]
KILL = int(os.environ.get("KILL", "0"))
CATCH = int(os.environ.get("CATCH", "0"))
NUM_EPOCHS = 3


class Host:
    """The library's state, of which a clock is no part of the result."""

    def __init__(self):
        self.began, self.losses = [], []

    def state_dict(self):
        return {"began": list(self.began), "losses": list(self.losses)}

    def load_state_dict(self, state):
        self.began, self.losses = list(state["began"]), list(state["losses"])
        print("restored", flush=True)


def die(team):
    if team.step == KILL:
        deadline = time.monotonic() + 60
        while team.is_main and not Path("run/checkpoints/newest").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        team.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


team = lockstep.join(
    shards=4, seed=7, threads=1, progress="off", run_dir="run", checkpoint_every=8 if HOW == "two passes" else 2
)
with team.hide_launcher():
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"} & set(os.environ)
torch.manual_seed(3)
data = TensorDataset(torch.randn(42, 6), torch.randint(0, 3, (42,)))
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 8, shuffle=True))
passes = [loader]
if HOW == "two passes":
    passes.append(team.prepare(DataLoader(data, 16, shuffle=True)))
host, clock = Host(), {"now": 0.0}
team.register("host", host)
team.register("clock", clock, compare=False)
epochs = team.hosted_epochs(NUM_EPOCHS)
try:
    for epoch in range(epochs.first, NUM_EPOCHS):
        epochs.begin(epoch)
        if not epochs.is_within or epoch > epochs.first:
            host.began.append((epoch, float(torch.rand(()))))
        for part in passes:
            batches = iter(part)
            for _ in range(part.num_skipped, len(part)):
                batch = next(batches)
                for inputs, labels in batch.shards:
                    loss = nn.functional.cross_entropy(model(inputs), labels)
                    team.backward(loss)
                    batch.add(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
                host.losses.append(batch["loss"])
                clock["now"] = time.time()
                die(team)
                if HOW == "break pass" and team.step % len(part) == 3:
                    break
                if team.step == CATCH:
                    raise KeyError
            part.finish()
        with team.evaluate(model, DataLoader(data, 9), share=True) as evaluation:
            rows = []
            for batch in evaluation:
                for inputs, labels in batch.shards:
                    batch.share((model(inputs).argmax(1), labels))
                rows += batch.shared()
        found = torch.cat([predicted for predicted, _ in rows])
        assert torch.equal(torch.cat([labels for _, labels in rows]), data.tensors[1])
        host.losses.append(int(found.sum()))
        if HOW == "break" and epoch == 1:
            epochs.end(early=True)
            break
    epochs.end()
except KeyError:
    print("caught", flush=True)
weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
results = repr((team.step, host.losses, host.began)).encode()
team.print("ended", team.step, hashlib.sha256(weights + results).hexdigest())
