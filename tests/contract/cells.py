"""Small trainings of the model of examples/digits.py, for ``test_matrix``: one SHA-256 of all state
at the end of each.

As a script (under torchrun): python cells.py CELLS FOLDER, where CELLS is JSON; each rank leaves
its digests in FOLDER."""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Subset

import lockstep

HERE = Path(__file__).parent
# the latter are scripts, in no package
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples")]

from bits import state_of  # noqa: E402


def sha256(*things, **more):
    """Of all the state of these things, and of what else there is."""
    return hashlib.sha256(repr(sorted({**state_of(*things), **more}.items())).encode()).hexdigest()


def train_digits(team, workers):
    """The convolutional network, with BatchNorm, dropout and shifted images; the last batch of each
    pass is smaller."""
    import digits

    model, criterion = digits.make_model(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    train, test = Subset(digits.Digits(train=True), range(180)), Subset(digits.Digits(train=False), range(90))
    loader = DataLoader(train, 52, shuffle=True, num_workers=workers)
    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, loader)
    losses = []
    for batch in loader:
        for images, labels in batch.shards:
            loss = criterion(model(images), labels)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(batch["loss"])
    with team.evaluate(model, DataLoader(test, 32, num_workers=workers)) as evaluation:
        for batch in evaluation:
            for images, labels in batch.shards:
                logits = model(images)
                batch.add(loss=criterion(logits, labels), accuracy=logits.argmax(1) == labels)
    return sha256(model, optimizer, schedule, steps=team.step, losses=losses, results=dict(evaluation.results))


def run_cells(cells):
    """This rank's digest of each run (its shards and loader workers), one after another in one
    process."""
    digests = []
    for shards, workers in cells:
        with lockstep.join(shards=shards, progress="off", threads=1) as team:
            digests.append(train_digits(team, workers))
    return digests


if __name__ == "__main__":
    found = run_cells(json.loads(sys.argv[1]))
    (Path(sys.argv[2]) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
