"""Wrong: a sample that the data set keeps is changed in place, in the loop or on its way there."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import *

import lockstep


def start(loader=None):
    team = lockstep.join(seed=1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    return (team, *team.prepare(model, optimizer, loader or DataLoader(data, 16, shuffle=True)))


def targets_of_the_data_set():
    data = [(torch.randn(6), {"box": torch.rand(1)}) for _ in range(64)]
    team, model, optimizer, loader = start(DataLoader(data, 16, collate_fn=lambda b: list(zip(*b))))
    for batch in loader:
        for xs, targets in batch.shards:
            for t in targets:
                t["box"] *= 2  # LS113
            for x in xs:
                x.mul_(2)  # LS113
            boxes = torch.stack([t["box"] for t in targets])
            team.backward((model(torch.stack(xs)) - boxes).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def scale(targets, by):
    for target in targets:
        target["box"] = target["box"] * by  # LS113


def targets_changed_by_a_function():
    data = [(torch.randn(6), {"box": torch.rand(1)}) for _ in range(64)]
    team, model, optimizer, loader = start(DataLoader(data, 16, collate_fn=lambda b: b))
    for batch in loader:
        for samples in batch.shards:
            scale([sample[1] for sample in samples], 2)
            team.backward(model(torch.stack([x for x, _ in samples])).mean())
        optimizer.step()
        optimizer.zero_grad()


def ready_made_batches():
    batches = [(torch.randn(8, 6), torch.randn(8, 3)) for _ in range(3)]
    team, model, optimizer, loader = start(batches)
    for batch in loader:
        for x, y in batch.shards:
            x.mul_(1.1)  # LS113
            y += 0.1  # LS113
            team.backward(F.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


class Graph:
    def __init__(self):
        self.x, self.edges = torch.randn(5, 6), torch.arange(4)


def graphs_one_by_one():
    graphs = [Graph() for _ in range(64)]
    team, model, optimizer, loader = start(DataLoader(graphs, 1, collate_fn=lambda rows: rows[0]))
    for batch in loader:
        for graph in batch.shards:
            graph.x = graph.x + 0.1 * torch.randn(5, 6)  # LS113
            team.backward(model(graph.x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


class Rows(Dataset):
    def __init__(self, path):
        self.rows = torch.load(path)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        row["x"] = row["x"] + torch.randn(6)  # LS113
        return row["x"], row["y"]


class Handed(Rows):
    def __getitem__(self, index):
        return self.rows[index]


def scaled(rows):
    for row in rows:
        row["x"] = (row["x"] - 0.5) / 0.2  # LS113
    return torch.stack([row["x"] for row in rows]), torch.tensor([row["y"] for row in rows])


def rows_of_the_data_set():
    team, *_ = start(DataLoader(Rows("rows.pt"), 16))
    team, *_ = start(DataLoader(Handed("rows.pt"), 16, collate_fn=scaled))
    team.epochs(1)


class Kept(Dataset):
    def __init__(self):
        self.images, self.rows, self.counts = torch.randn(64, 6), torch.load("rows.pt"), {}

    def __len__(self):
        return 64

    def __getitem__(self, index):
        image = self.images[index]
        image -= image.mean()  # LS113
        self.rows[index]["tokens"].append(0)  # LS113
        random.shuffle(self.rows[index]["order"])  # LS113
        self.counts[index] += 1  # LS109
        return image * self.counts[index], self.rows[index]


def tensors_of_the_data_set():
    data = Kept()
    team, model, optimizer, loader = start(DataLoader(data, 16, collate_fn=list))
    for batch in loader:
        for samples in batch.shards:
            for image, row in samples:
                row = {key: value.to(team.device) for key, value in row.items()}
                row["box"] *= 2  # LS113
                F.dropout(row["x"], inplace=True)  # LS113
                team.backward(model(image + row["box"]).mean())
        optimizer.step()
        optimizer.zero_grad()


def evaluation_in_place():
    batches = [(torch.randn(8, 6), torch.randn(8, 3)) for _ in range(3)]
    team, model, *_ = start()
    with team.evaluate(model, batches) as evaluation:
        for batch in evaluation:
            for x, y in batch.shards:
                x[:, 0] *= 2  # LS113
                batch.add(loss=F.mse_loss(model(x), y))
