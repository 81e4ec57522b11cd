"""Small trainings of the examples' models, for ``test_matrix``: one SHA-256 of all state at the end of each.

As a script (under torchrun): python cells.py CELLS FOLDER, where CELLS is JSON; each rank leaves its digests in FOLDER.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

import lockstep

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples")]  # the latter are scripts, in no package

from bits import state_of  # noqa: E402


def sha256(*things, **more):
    """Of all the state of these things, and of what else there is."""
    return hashlib.sha256(repr(sorted({**state_of(*things), **more}.items())).encode()).hexdigest()


def train_digits(team, workers):
    """The convolutional network, with BatchNorm, dropout and shifted images; the last batch of each pass is smaller."""
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


def train_transformer(team, workers):
    """The language model, with dropout, clipping, a schedule, and shards weighted by what is not padding."""
    import transformer

    data = [transformer.encode(line) for line in transformer.lines()]
    options = {"collate_fn": transformer.collate, "num_workers": workers}
    model = transformer.Writer(width=32, num_heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
    loader = DataLoader(data[:90], 24, shuffle=True, **options)
    model, optimizer, warm_up, loader = team.prepare(model, optimizer, warm_up, loader)
    losses = []
    for batch in loader:
        for inputs, targets, num_characters in batch.shards:
            loss = transformer.mean_loss(model(inputs), targets)
            team.backward(loss, weight=num_characters)
            batch.add(loss=loss)
        team.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        optimizer.zero_grad()
        losses.append(batch["loss"])
    with team.evaluate(model, DataLoader(data[90:140], 16, **options)) as evaluation:
        for batch in evaluation:
            for inputs, targets, num_characters in batch.shards:
                logits = model(inputs)
                top5 = transformer.accuracy(logits, targets, 5)
                batch.add(loss=transformer.mean_loss(logits, targets), top5=top5, weight=num_characters)
    return sha256(model, optimizer, warm_up, steps=team.step, losses=losses, results=dict(evaluation.results))


MODELS = {"digits": train_digits, "transformer": train_transformer}


def run_cells(cells):
    """This rank's digest of each cell (model, shards, workers, strategy), one run after another in one process."""
    digests = []
    for model, shards, workers, strategy in cells:
        asked = {} if strategy == "auto" else {"strategy": strategy}
        with lockstep.join(shards=shards, **asked, progress="off", threads=1) as team:
            digests.append(MODELS[model](team, workers))
    return digests


def train_with_plain_ddp(folder):
    """PyTorch's own DistributedDataParallel without lockstep, on the same batches, each rank with its equal part."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{world_size}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = torch.randn(8, 48, 64), torch.arange(8 * 48).reshape(8, 48) % 10
    for step in range(8):
        mine = slice(rank * 48 // world_size, (rank + 1) * 48 // world_size)
        torch.nn.functional.cross_entropy(parallel(inputs[step, mine]), targets[step, mine]).backward()
        optimizer.step()
        optimizer.zero_grad()
    digest = sha256(model, optimizer)
    del parallel
    dist.destroy_process_group()
    return digest


if __name__ == "__main__":
    found = run_cells(json.loads(sys.argv[1]))
    (Path(sys.argv[2]) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
