"""A transformer layer."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model = nn.ModuleDict({"words": nn.Embedding(12, 8), "layer": layer, "head": nn.Linear(8, 12)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randint(0, 12, (22, 6)), 10, shuffle=True))
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    for batch in loader:
        for words in batch.shards:
            hidden = model["layer"](model["words"](words[:, :-1]), src_mask=mask, is_causal=True)
            team.backward(functional.cross_entropy(model["head"](hidden).flatten(0, 1), words[:, 1:].flatten()))
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


if __name__ == "__main__":
    main()
