"""Handwritten digits (scans from scikit-learn, no download) with a small convolutional network.

python examples/digits.py                                  one process
lockstep run --nproc-per-node 2 examples/digits.py         two processes
lockstep compare examples/digits.py                        every method that this machine can run
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lockstep


class Digits(Dataset):
    """Scans of 8 x 8 pixels. Scans for training are shifted by up to one pixel at random."""

    def __init__(self, train):
        images, labels = load_digits(return_X_y=True)
        part = slice(0, 1437) if train else slice(1437, None)
        self.images = torch.tensor(images[part], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels[part])
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            shift = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll(shift, dims=(1, 2))
        return image, self.labels[index]


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 16, 10),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="samples in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=0, help="loader workers of each process")
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loader = DataLoader(Digits(train=True), args.batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(Digits(train=False), args.batch_size, num_workers=args.workers)
    criterion = nn.CrossEntropyLoss()

    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            for images, labels in batch.shards:
                loss = criterion(model(images), labels)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])
        with team.evaluate(model, test_loader) as evaluation:
            for batch in evaluation:
                for images, labels in batch.shards:
                    logits = model(images)
                    batch.add(loss=criterion(logits, labels), accuracy=logits.argmax(1) == labels)
        team.print(f"epoch {epoch + 1}: test loss {evaluation['loss']:.4f}, accuracy {evaluation['accuracy']:.2%}")


if __name__ == "__main__":
    main()
