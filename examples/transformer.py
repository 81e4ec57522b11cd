"""A small transformer that learns to write Python, character by character, from Python's library.

python examples/transformer.py                             one process
lockstep run --nproc-per-node 2 examples/transformer.py    two processes
lockstep compare examples/transformer.py                   every method that this machine can run
"""

import argparse
import configparser
import inspect
import optparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import lockstep

MODULES = (argparse, configparser, optparse)
LENGTH = 48
PAD, END, FIRST = 0, 1, 31  # then the printable characters, from the space
VOCABULARY = 127 - FIRST + 1


def lines():
    """Returns the lines of code of these modules, each line once."""
    sources = [Path(inspect.getsourcefile(module)).read_text(encoding="utf-8") for module in MODULES]
    found = dict.fromkeys(line.strip() for source in sources for line in source.splitlines())
    return [line for line in found if len(line) >= 8 and line.isascii() and line.isprintable()]


def encode(line):
    """Returns numbers for characters: END before the line and, if it is short enough, after it."""
    return torch.tensor([END, *(ord(character) - FIRST + 1 for character in line), END][: LENGTH + 1])


def collate(lines):
    """Returns inputs, targets, and the number of characters without the padding."""
    padded = pad_sequence(lines, batch_first=True, padding_value=PAD)
    return padded[:, :-1], padded[:, 1:], sum(len(line) - 1 for line in lines)


class Writer(nn.Module):
    def __init__(self, width=64, num_heads=4, num_layers=2, dropout=0.1):
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, num_heads, 4 * width, dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, texts):
        length = texts.shape[1]
        hidden = self.characters(texts) + self.places(torch.arange(length, device=texts.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=texts.device)
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def mean_loss(logits, targets):
    """Returns the mean over all characters except padding."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)


def accuracy(logits, targets, k):
    """Returns the share of characters that are among the k most likely ones."""
    hits = (logits.topk(k).indices == targets.unsqueeze(-1)).any(-1)
    return hits[targets != PAD].double().mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="lines in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.006)
    parser.add_argument("--workers", type=int, default=0, help="loader workers of each process")
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    data = [encode(line) for line in lines()]
    loader_options = {"collate_fn": collate, "num_workers": args.workers}
    loader = DataLoader(data[256:], args.batch_size, shuffle=True, **loader_options)
    test_loader = DataLoader(data[:256], args.batch_size, **loader_options)
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))

    model, optimizer, warm_up, loader = team.prepare(model, optimizer, warm_up, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            for inputs, targets, num_characters in batch.shards:
                loss = mean_loss(model(inputs), targets)
                team.backward(loss, weight=num_characters)
                batch.add(loss=loss)
            team.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warm_up.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])
        with team.evaluate(model, test_loader) as evaluation:
            for batch in evaluation:
                for inputs, targets, num_characters in batch.shards:
                    logits = model(inputs)
                    values = {"top1": accuracy(logits, targets, 1), "top5": accuracy(logits, targets, 5)}
                    batch.add(loss=mean_loss(logits, targets), **values, weight=num_characters)
        summary = f"test loss {evaluation['loss']:.4f}, top-1 {evaluation['top1']:.2%}, top-5 {evaluation['top5']:.2%}"
        team.print(f"epoch {epoch + 1}: {summary}")


if __name__ == "__main__":
    main()
