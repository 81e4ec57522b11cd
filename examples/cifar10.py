"""CIFAR-10 from its standard archive, with the small network of PyTorch's tutorial or a ResNet-18.

python examples/cifar10.py                                           one process
lockstep run --nproc-per-node 2 examples/cifar10.py                  two processes
lockstep run --nproc-per-node 4 examples/cifar10.py --model resnet18 --batch-size 256 --lr 0.1

The script reads the archive cifar-10-python.tar.gz, or the unpacked directory cifar-10-batches-py,
from data/ (or --data).
"""

import argparse
import pickle
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch
from resnet import make_resnet
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import lockstep

ARCHIVE, DIRECTORY = "cifar-10-python.tar.gz", "cifar-10-batches-py"
URL, MD5 = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"
EDGE = 4  # pixels by which images are shifted at most


def unpack(place):
    """Returns the directory with the batches, and unpacks the archive if necessary."""
    directory, archive = place / DIRECTORY, place / ARCHIVE
    if directory.is_dir():
        return directory
    if not archive.is_file():
        raise SystemExit(
            f"CIFAR-10 is not in {place.absolute()}. Download {ARCHIVE} there from {URL} (170 MB, MD5 {MD5}), "
            f"or pass the directory that contains {ARCHIVE} or {DIRECTORY} with --data."
        )
    with tempfile.TemporaryDirectory(dir=place) as scratch:  # renamed when complete
        try:
            with tarfile.open(archive) as files:
                files.extractall(scratch, filter="data")
        except (tarfile.TarError, OSError, EOFError) as error:
            raise SystemExit(
                f"{archive} cannot be unpacked ({error}). Its MD5 should be {MD5}. Download it again."
            ) from error
        (Path(scratch) / DIRECTORY).rename(directory)
    return directory


class BatchReader(pickle.Unpickler):
    """An unpickler for batches that allows only functions that build arrays.

    Other pickles could call any function.
    """

    NAMES = {"ndarray": np.ndarray, "dtype": np.dtype, "_reconstruct": np.empty(0).__reduce__()[0]}  # noqa: RUF012

    def find_class(self, module, name):
        if not module.startswith("numpy") or name not in self.NAMES:
            raise pickle.UnpicklingError(f"{module}.{name} is not expected in a batch of CIFAR-10")
        return self.NAMES[name]


def read_batch(path):
    with path.open("rb") as file:
        return BatchReader(file, encoding="bytes").load()


class Images(Dataset):
    """Images of 3 x 32 x 32, from -1 to 1, shifted and mirrored at random for training."""

    def __init__(self, directory, train):
        names = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
        batches = [read_batch(directory / name) for name in names]
        self.images = torch.from_numpy(np.concatenate([batch[b"data"] for batch in batches])).reshape(-1, 3, 32, 32)
        self.labels = torch.tensor([label for batch in batches for label in batch[b"labels"]])
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            top, left, mirrored = (torch.randint(0, bound, ()).item() for bound in (2 * EDGE + 1, 2 * EDGE + 1, 2))
            image = functional.pad(image, [EDGE] * 4)[:, top : top + 32, left : left + 32]
            image = image.flip(2) if mirrored else image
        return image / 127.5 - 1, self.labels[index]


def make_cnn():
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="directory of the archive (default: data)")
    parser.add_argument("--model", choices=("cnn", "resnet18"), default="cnn")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="samples in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=0, help="loader workers of each process")
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    with team.main_first():  # one process unpacks, before the others look
        directory = unpack(args.data)
    loader = DataLoader(Images(directory, train=True), args.batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(Images(directory, train=False), args.batch_size, num_workers=args.workers)
    model = make_cnn() if args.model == "cnn" else make_resnet("resnet18", num_classes=10, small_images=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    criterion = nn.CrossEntropyLoss()

    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            for images, labels in batch.shards:
                loss = criterion(model(images), labels)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])
        schedule.step()
        with team.evaluate(model, test_loader) as evaluation:
            for batch in evaluation:
                for images, labels in batch.shards:
                    logits = model(images)
                    batch.add(loss=criterion(logits, labels), accuracy=logits.argmax(1) == labels)
        is_best = ", the best so far" if team.best(evaluation["accuracy"]) else ""
        team.print(f"epoch {epoch + 1}: test loss {evaluation['loss']:.4f}, accuracy {evaluation['accuracy']:.2%}{is_best}")


if __name__ == "__main__":
    main()
