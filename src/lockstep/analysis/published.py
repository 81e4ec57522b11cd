"""Published measurements of the methods, to be shown beside a comparison. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_RESNET = "ResNet-50 on ImageNet, 400 images a GPU, A100 GPUs, PyTorch 1.8"
_ONE_CORE = "a small CNN on CIFAR-10, V100 GPUs, one CPU core for all processes, 50 epochs"


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row of an article."""

    method: str
    """Its name in ``lockstep compare``."""
    called: str
    """Its name in the article."""
    task: str
    num_processes: int
    """GPUs, for all of these."""
    seconds: float
    """Per epoch, or of all where the task says how many."""
    speed_up: float
    """Over the article's own one GPU."""
    utilisation: float | None = None
    """Of the GPUs, mean, in per cent."""
    memory_gb: float | None = None
    """Of each GPU."""

    @property
    def efficiency(self) -> float:
        """Speed-up divided by the number of GPUs, in per cent."""
        return 100 * self.speed_up / self.num_processes


def _rows(task: str, *rows: tuple[str, str, int, float, float | None, float | None]) -> tuple[Published, ...]:
    baseline_s = rows[0][3]
    return tuple(
        Published(
            method=method,
            called=called,
            task=task,
            num_processes=gpus,
            seconds=seconds,
            speed_up=baseline_s / seconds,
            utilisation=utilisation,
            memory_gb=memory_gb,
        )
        for method, called, gpus, seconds, utilisation, memory_gb in rows
    )


PUBLISHED = (
    *_rows(
        _RESNET,
        ("single", "one GPU", 1, 1786.8, 99.5, 39.92),
        ("dp", "nn.DataParallel", 8, 984.6, 59.8, 39.92),
        ("ddp", "torch.distributed", 8, 239.4, 99.5, 39.92),
        ("ddp+16-mixed", "apex", 8, 231.0, 88.8, 24.48),
        ("ddp+16-mixed", "apex, 4 nodes", 32, 54.5, 79.2, 24.48),
    ),
    *_rows(
        _ONE_CORE,
        ("single", "one GPU", 1, 577.0, None, None),
        ("dp", "DataParallel", 4, 556.0, None, None),
        ("ddp", "DistributedDataParallel", 4, 1439.0, None, None),
    ),
)
"""Of articles that compare methods. Their rows have N times the batch on N GPUs, and so not the same answer."""
