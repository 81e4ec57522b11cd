"""Right, though samples are changed in place: those that a loader has made, copies, or the same again. Nothing is found."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lockstep


def start(loader=None):
    team = lockstep.join(seed=1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    return (team, *team.prepare(model, optimizer, loader or DataLoader(data, 16, shuffle=True)))


def batches_changed_that_the_loader_has_made():
    team, model, optimizer, loader = start()
    for batch in loader:
        for x, y in batch.shards:
            x.mul_(2.0)
            x += 0.1 * torch.randn_like(x)
            x[:, 0] *= 0.0
            team.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


class Boxes(Dataset):
    """Makes each sample when it is fetched; caches what it has decoded."""

    def __init__(self, rows):
        self.rows, self.decoded = rows, {}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = dict(self.rows[index])
        row["box"] = row["box"] * 2
        row["box"] += 1
        self.rows[index]["label"] = int(self.rows[index]["label"])
        self.rows[index]["size"] = len(self.rows[index]["box"])
        if index not in self.decoded:
            self.decoded[index] = self.rows[index]["box"].clone()
        x = self.decoded[index].clone()
        x.mul_(2)
        box = torch.tensor(row["box"])
        box *= 3
        return x, {"box": box}


def side_by_side(samples):
    images, targets = zip(*samples, strict=True)
    targets = [{key: value.clone() for key, value in target.items()} for target in targets]
    for target in targets:
        target["box"] *= 2
    return torch.stack(images), targets


def boxes_of_their_own():
    rows = [{"box": torch.rand(4), "label": i % 3} for i in range(64)]
    loader = DataLoader(Boxes(rows), 16, collate_fn=side_by_side)
    team, model, optimizer, loader = start(loader)
    for batch in loader:
        for images, targets in batch.shards:
            for target in targets:
                target["box"] *= 2
                target["box"].div_(4)
            boxes = torch.stack([target["box"] for target in targets])
            team.backward((model(images).sum(1) - boxes.sum(1)).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def ready_made_batches_copied():
    batches = [(torch.randn(8, 6), torch.arange(8) % 3) for _ in range(3)]
    team, model, optimizer, loader = start(batches)
    for batch in loader:
        for x, y in batch.shards:
            x = x * 1.1
            x += 0.1
            x.mul_(2.0)
            z = x.clone()
            z.add_(1.0)
            team.backward(F.cross_entropy(model(x) + model(z), y))
        optimizer.step()
        optimizer.zero_grad()


class Pictures(Dataset):
    """Keeps its rows, and changes what it has made of them."""

    def __init__(self, rows, transform=None):
        self.rows, self.transform, self.labels = rows, transform, torch.arange(64) % 3

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        row["image"] = torch.load(row["path"])
        row["image"] = row["image"] / 255
        row["image"] += 0.1 * torch.randn(6)
        row["text"] = row["text"].strip().lower()
        row["ids"] = row["ids"][:512]
        row["label"] = int(row["label"])
        label = self.labels[index]
        label = label + 1
        return self.transform(row["image"]), label


def padded(rows):
    rows.sort(key=len)
    rows.append(rows[0])
    batch = {key: torch.stack([row[key] for row in rows]) for key in ("x", "y")}
    batch["x"] *= 2
    batch["y"] -= batch["y"].min()
    longest = max(len(row["x"]) for row in rows)
    longest += 1
    for row in rows:
        copied = {**row}
        copied["x"] = copied["x"] / 2
        copied["n"] += 1
        numbers = {name: row[name] for name in row}
        numbers["n"] += 1
        row["x"].clamp_(0.0, 1.0)
        row["y"].masked_fill_(row["y"] == 0, -100)
    return batch["x"], batch["y"]


def samples_changed_after_they_were_copied():
    rows = [{"x": torch.randn(6), "y": torch.zeros(1), "n": 3} for _ in range(64)]
    team, model, optimizer, loader = start(DataLoader(rows, 16, collate_fn=padded))
    for batch in loader:
        for x, y in batch.shards:
            x *= 2
            y.sub_(1)
            team.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    start(DataLoader(Pictures(rows, torch.nn.ReLU()), 16))


def targets_that_come_from_workers():
    data = [(torch.randn(6), {"box": torch.rand(1)}) for _ in range(64)]
    team, model, optimizer, loader = start(DataLoader(data, 16, num_workers=2, collate_fn=lambda b: tuple(zip(*b))))
    for batch in loader:
        for xs, targets in batch.shards:
            for t in targets:
                t["box"] *= 2
            boxes = torch.stack([t["box"] for t in targets])
            team.backward((model(torch.stack(xs)) - boxes).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def labels_shifted_in_a_ready_made_batch():
    batches = [(torch.randn(8, 6), torch.arange(8) % 3) for _ in range(3)]
    team, model, optimizer, loader = start(batches)
    for batch in loader:
        for x, y in batch.shards:
            labels = y.clone()
            labels[x[:, 0] > 0] = -100
            labels += 1
            y = y.long() + 1
            y -= 1
            y[y == 7] = 0
            n = len(y)
            n += 1
            team.backward(F.cross_entropy(F.relu(model(x), inplace=True), y) / n)
        optimizer.step()
        optimizer.zero_grad()


def stacked(rows):
    rows = copy.deepcopy(rows)
    for row in rows:
        row["x"] *= 2
    return torch.stack([row["x"] for row in rows]), torch.zeros(len(rows), dtype=torch.long)


def what_is_to_be_written():
    data = [(torch.randn(6), {"box": torch.rand(1)}) for _ in range(64)]
    team, model, optimizer, loader = start(DataLoader(data, 16, collate_fn=lambda b: tuple(zip(*b))))
    for batch in loader:
        for xs, targets in batch.shards:
            xs, targets = copy.deepcopy((xs, targets))
            for t in targets:
                t["box"] *= 2
            boxes = torch.stack([t["box"] for t in targets])
            team.backward((model(torch.stack(xs)) - boxes).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return start(DataLoader([{"x": torch.randn(6)} for _ in range(64)], 16, collate_fn=stacked))
