"""Train a small language model on one process or on many, with the same answer.

python train.py                                one process
lockstep run --nproc-per-node 2 train.py       two
lockstep verify train.py                       is it the same answer?
"""

import argparse
import math
import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep

LENGTH = 32  # characters that the model sees


def make_data(num_sums):
    """Sums, such as 17+25=42, as one text in blocks; put your text and your tokenizer here."""
    generator = random.Random(num_sums)  # the same data in every process
    pairs = [(generator.randrange(50), generator.randrange(50)) for _ in range(num_sums)]
    text = "".join(f"{a}+{b}={a + b}\n" for a, b in pairs)
    return torch.tensor(list(text.encode())).unfold(0, LENGTH + 1, LENGTH)  # a block begins with the last one's end


class LanguageModel(nn.Module):
    """Your model here: without .to(device) and without a wrapper, lockstep does both."""

    def __init__(self, vocabulary=128, width=64, num_heads=4, num_layers=2):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, num_heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def mean_loss(model, blocks):
    """The mean over all characters, each predicted from those before it. (Blocks have equally many.)"""
    return functional.cross_entropy(model(blocks[:, :-1]).flatten(0, 1), blocks[:, 1:].flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="blocks in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--patience", type=int, default=3, help="stop after so many epochs without a lower loss")
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(make_data(5000), args.batch_size, shuffle=True)
    val_loader = DataLoader(make_data(500), args.batch_size)

    model, optimizer, loader = team.prepare(model, optimizer, loader)
    state = team.state(best=math.inf, bad=0)  # saved in checkpoints: plain variables would start over when the run resumes
    for epoch in team.epochs(args.epochs):
        for batch in loader:  # one iteration is one step, on every process
            for blocks in batch.shards:  # this process's part of the batch
                loss = mean_loss(model, blocks)
                team.backward(loss)
                batch.add(loss=loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])  # of the whole batch, and equal on every process
        with team.evaluate(model, val_loader) as evaluation:
            for batch in evaluation:
                for blocks in batch.shards:
                    batch.add(loss=mean_loss(model, blocks))
        loss = evaluation["loss"]
        team.best(loss, mode="min")  # keeps the best weights, in best/ of the run directory
        state.best, state.bad = (loss, 0) if loss < state.best else (state.best, state.bad + 1)
        team.print(f"epoch {epoch + 1}: loss {loss:.4f}, best {state.best:.4f}")
        if state.bad == args.patience:
            break


if __name__ == "__main__":
    main()
