"""Published measurements of the methods, to be shown beside a comparison. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """One row of an article."""

    method: str
    """Its name in ``lockstep compare``."""
    called: str
    """Its name in the article."""
    num_gpus: int
    seconds: float
    """Per epoch, or in all if the task names a number of epochs."""
    utilisation: float | None = None
    """Of the GPUs, mean, in per cent."""
    memory_gb: float | None = None
    """Of each GPU."""


PUBLISHED = {
    "ResNet-50 on ImageNet, 400 images a GPU, A100 GPUs, PyTorch 1.8": (
        Published("single", "one GPU", 1, 1786.8, 99.5, 39.92),
        Published("dp", "nn.DataParallel", 8, 984.6, 59.8, 39.92),
        Published("ddp", "torch.distributed", 8, 239.4, 99.5, 39.92),
        Published("ddp+16-mixed", "apex", 8, 231.0, 88.8, 24.48),
        Published("ddp+16-mixed", "apex, 4 nodes", 32, 54.5, 79.2, 24.48),
    ),
    "a small CNN on CIFAR-10, V100 GPUs, one CPU core for all processes, 50 epochs": (
        Published("single", "one GPU", 1, 577.0),
        Published("dp", "DataParallel", 4, 556.0),
        Published("ddp", "DistributedDataParallel", 4, 1439.0),
    ),
}
"""By task; the first row of each is its baseline. With N GPUs they have N times the batch, and so not the same answer."""
