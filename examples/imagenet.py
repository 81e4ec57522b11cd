"""ResNet-50 on ImageNet or your own images: one directory per class in train/ and val/ of --data.

python examples/imagenet.py --data imagenet                     one process
lockstep run --nproc-per-node 8 --precision bf16-mixed examples/imagenet.py --data imagenet
--batch-size 3200

The recipe is usual: 400 images per GPU, SGD, a tenth of the learning rate after every 30 epochs. A
ResNet requires only Pillow. --arch also takes any name from torchvision (pip install torchvision).
"""

import argparse
import math
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from resnet import DEPTHS, make_resnet
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lockstep

# ImageNet's pixels: red, green, blue
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")


def find_classes(root):
    """Returns the sorted names of the directories in train/. The index of a name is its label."""
    classes = sorted(path.name for path in (root / "train").glob("*/"))
    missing = [name for name in classes if not (root / "val" / name).is_dir()]
    if not classes or missing:
        wrong = f"val/ lacks {', '.join(missing[:3])}" if classes else "there are no directories in train/"
        raise SystemExit(
            f"no training images in {root.absolute()}: {wrong}. Put one directory per class in train/ and val/, such as "
            "train/n01440764/n01440764_10026.JPEG, and pass their parent with --data. (Request ImageNet at "
            "https://image-net.org/download.)"
        )
    return classes


class Images(Dataset):
    """Images of ``size`` x ``size`` x 3 bytes: a random crop for training, otherwise the center."""

    def __init__(self, directory, classes, size, train):
        files = [(path, label) for label, name in enumerate(classes) for path in sorted((directory / name).iterdir())]
        self.files = [(str(path), label) for path, label in files if path.suffix.lower() in SUFFIXES]
        self.size = size
        self.train = train

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        with Image.open(path) as image:
            box = random_part(*image.size) if self.train else middle(*image.size)
            image = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR, box, reducing_gap=2)
        if self.train and random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)), label


def middle(width, height):
    """Returns the center square with 7/8 of the shorter side: left, upper, right and lower edge."""
    side = min(width, height) * 7 / 8
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def random_part(width, height):
    """Returns the edges of a random crop: 8 to 100 % of the image, with sides from 3:4 to 4:3."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        part_width, part_height = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if part_width <= width and part_height <= height:
            left, upper = random.uniform(0, width - part_width), random.uniform(0, height - part_height)
            return left, upper, left + part_width, upper + part_height
    return middle(width, height)


def make_model(arch, num_classes):
    if arch in DEPTHS:
        return make_resnet(arch, num_classes)
    try:
        from torchvision.models import get_model
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        raise SystemExit(
            f"--arch {arch} comes from torchvision, which cannot be imported ({error}). Run pip install "
            f"torchvision, or use one of {', '.join(DEPTHS)}."
        ) from error
    return get_model(arch, num_classes=num_classes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/imagenet"), help="directory that contains train/ and val/")
    parser.add_argument("--arch", default="resnet50", help=f"{', '.join(DEPTHS)}, or a name from torchvision")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=400, help="images in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument(
        "--channels-last", action="store_true", help="store the channels of a pixel together: faster on GPUs"
    )
    parser.add_argument("--workers", type=int, default=4, help="loader workers of each process")
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    classes = find_classes(args.data)
    loader_options = {"num_workers": args.workers, "pin_memory": team.device.type == "cuda"}
    train, val = (Images(args.data / part, classes, args.image_size, train=part == "train") for part in ("train", "val"))
    loader = DataLoader(train, args.batch_size, shuffle=True, **loader_options)
    val_loader = DataLoader(val, args.batch_size, **loader_options)
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = make_model(args.arch, len(classes)).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30, 0.1)
    criterion = nn.CrossEntropyLoss()
    mean, deviation = torch.tensor(MEAN, device=team.device), torch.tensor(DEVIATION, device=team.device)

    # Here and not in the dataset: bytes are a quarter of the data to copy to the GPU.
    def to_input(pixels):
        return ((pixels - mean) / deviation).permute(0, 3, 1, 2).contiguous(memory_format=layout)

    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            for pixels, labels in batch.shards:
                loss = criterion(model(to_input(pixels)), labels)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])
        schedule.step()
        with team.evaluate(model, val_loader) as evaluation:
            for batch in evaluation:
                for pixels, labels in batch.shards:
                    logits = model(to_input(pixels))
                    hits = logits.topk(min(5, len(classes))).indices == labels.unsqueeze(1)
                    batch.add(loss=criterion(logits, labels), top1=hits[:, 0], top5=hits.any(1))
        is_best = ", the best so far" if team.best(evaluation["top1"]) else ""
        summary = f"loss {evaluation['loss']:.4f}, top-1 {evaluation['top1']:.2%}, top-5 {evaluation['top5']:.2%}{is_best}"
        team.print(f"epoch {epoch + 1}: {summary}")


if __name__ == "__main__":
    main()
