"""A dataset that is a stream, without a length or an index: the next character of Python code.

python examples/streaming.py                               one process
lockstep run --nproc-per-node 2 examples/streaming.py      two processes

Nothing splits the stream by rank or worker: every process reads all of it, and keeps the samples of
its shards.
"""

import argparse
import inspect
import json
import random
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import lockstep

DIRECTORY = Path(inspect.getsourcefile(json)).parent
CONTEXT = 8


class Characters(IterableDataset):
    """A stream of the characters in these files, each with the characters before it."""

    def __init__(self, paths, buffer=0):
        self.paths = list(paths)
        self.buffer = buffer  # the number of samples from which the next is drawn

    def samples(self):
        for path in self.paths:
            text = path.read_bytes()
            for start in range(0, len(text) - CONTEXT, CONTEXT // 2):
                yield torch.tensor(list(text[start : start + CONTEXT + 1])).clamp(max=127)

    def __iter__(self):
        waiting = []
        for sample in self.samples():
            if len(waiting) < self.buffer:
                waiting.append(sample)
            elif self.buffer == 0:
                yield sample
            else:
                drawn = random.randrange(self.buffer)  # lockstep seeds it differently in each epoch
                sample, waiting[drawn] = waiting[drawn], sample
                yield sample
        random.shuffle(waiting)
        yield from waiting


def make_model():
    return nn.Sequential(
        nn.Embedding(128, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 128), nn.ReLU(), nn.Linear(128, 128)
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128, help="samples in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--workers", type=int, default=0, help="loader workers of each process; a stream uses at most one")
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    loader = DataLoader(
        Characters([DIRECTORY / "decoder.py", DIRECTORY / "encoder.py"], buffer=1000),
        args.batch_size,
        num_workers=args.workers,
    )
    test_loader = DataLoader(Characters([DIRECTORY / "scanner.py"]), args.batch_size)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            for characters in batch.shards:
                loss = nn.functional.cross_entropy(model(characters[:, :-1]), characters[:, -1])
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])
        with team.evaluate(model, test_loader) as evaluation:
            for batch in evaluation:
                for characters in batch.shards:
                    logits = model(characters[:, :-1])
                    batch.add(accuracy=logits.argmax(1) == characters[:, -1])
        team.print(f"epoch {epoch + 1}: accuracy {evaluation['accuracy']:.2%}")


if __name__ == "__main__":
    main()
