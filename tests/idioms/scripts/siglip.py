"""A sigmoid loss over the global batch (SigLIP)."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.ModuleDict({"image": nn.Linear(6, 4), "text": nn.Linear(5, 4)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    data = TensorDataset(torch.randn(22, 6), torch.randn(22, 5))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        with torch.no_grad():
            texts, mine = team.all_gather_rows([functional.normalize(model["text"](text)) for _, text in batch.shards])
            images, _ = team.all_gather_rows([functional.normalize(model["image"](image)) for image, _ in batch.shards])
        signs = 2 * torch.eye(len(texts)) - 1
        for (image, text), own in zip(batch.shards, mine, strict=True):
            one, other = functional.normalize(model["image"](image)), functional.normalize(model["text"](text))
            alike = 5 * one @ texts.T, 5 * other @ images.T
            losses = [functional.logsigmoid(signs[own] * logits).sum(dim=1) for logits in alike]
            team.backward(-(losses[0] + losses[1]).mean())
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
