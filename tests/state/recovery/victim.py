"""A training script to be killed: it notes every sample that it uses, and its last words are a
digest of its weights.

usage: victim.py KIND [STEP_S]
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import lockstep

KIND = sys.argv[1]
STEP_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
NUM_SAMPLES, EPOCHS, BATCH = 203, 3, 16
WORKERS = int(os.environ.get("VICTIM_WORKERS", "0"))


def sample(index):
    generator = torch.Generator().manual_seed(index)
    features = torch.randn(12, generator=generator)
    # The second part is augmentation: it comes from the streams of the run.
    return features + 0.1 * torch.randn(12), (features.sum() > 0).long(), index


class Samples(Dataset):
    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return sample(index)


class Stream(IterableDataset):
    """A stream that must be read from its beginning."""

    def __iter__(self):
        return (sample(index) for index in range(NUM_SAMPLES))


class Bookmarked(IterableDataset):
    """A stream that can be gone on with."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < NUM_SAMPLES:
            self.position += 1
            yield sample(self.position - 1)
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def loader():
    if KIND == "ready":
        rows = [(*sample(i)[:2], torch.tensor(i)) for i in range(NUM_SAMPLES)]
        columns = [torch.stack(column) for column in zip(*rows, strict=True)]
        return [tuple(column[i : i + BATCH] for column in columns) for i in range(0, NUM_SAMPLES, BATCH)]
    if KIND in ("stream", "bookmarked"):
        return DataLoader(Stream() if KIND == "stream" else Bookmarked(), batch_size=BATCH, num_workers=WORKERS)
    # Its own generator goes on from epoch to epoch.
    generator = torch.Generator().manual_seed(5) if KIND == "generator" else None
    return DataLoader(Samples(), batch_size=BATCH, shuffle=True, num_workers=WORKERS, generator=generator)


def digest(*things):
    found = hashlib.sha256()
    for thing in things:
        for name, value in sorted(thing.state_dict().items()):
            found.update(
                name.encode() + (value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
            )
    return found.hexdigest()


team = lockstep.join()
model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
model, optimizer, schedule, average, batches = team.prepare(model, optimizer, schedule, average, loader())
mine = team.register("mine", {"epochs": 0, "seen": torch.zeros(()), "losses": []})

attempt = f"{os.environ.get('VICTIM_LAUNCH', '0')}.{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
notes = Path(os.environ.get("VICTIM_NOTES", "notes"))
notes.mkdir(exist_ok=True)
(notes / f"pid-{attempt}-{team.rank}").write_text(f"{os.getpid()} {os.uname().nodename}")
used = (notes / f"used-{attempt}-{team.rank}").open("a", buffering=1)

for epoch in team.epochs(EPOCHS):
    model.train()
    for batch in batches:
        for features, labels, index in batch.shards:
            loss = nn.functional.cross_entropy(model(features), labels)
            team.backward(loss)
            batch.add(loss=loss)
            used.write(json.dumps([epoch, team.step, index.tolist()]) + "\n")
            time.sleep(STEP_S)
        norm = team.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        optimizer.zero_grad()
        mine["seen"] += batch.num_samples
        team.log(loss=batch["loss"], norm=norm)
    mine["epochs"] += 1
    mine["losses"].append(batches.averages["loss"])
    with team.evaluate(model, DataLoader(Samples(), batch_size=50)) as evaluation:
        for batch in evaluation:
            for features, labels, _ in batch.shards:
                batch.add(accuracy=model(features).argmax(1) == labels)
    team.best(evaluation["accuracy"])

words = {
    "model": digest(model, average),
    "accuracy": evaluation["accuracy"],
    "epochs": mine["epochs"],
    "seen": mine["seen"].item(),
    "losses": mine["losses"],
}
team.print("last words", json.dumps(words, sort_keys=True))
