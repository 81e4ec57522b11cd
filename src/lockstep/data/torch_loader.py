"""What is to be known of a DataLoader of PyTorch's, or of what a script uses in its place."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

from lockstep.errors import DataError


def set_epoch(epoch: int, *objects: object) -> None:
    """Tell those of the objects that want to know it, as scripts tell samplers."""
    for thing in objects:
        setter = getattr(thing, "set_epoch", None)
        if callable(setter):
            setter(epoch)


def samplers_of(loader: DataLoader[Any]) -> list[Any]:
    """The samplers of a loader, and those that they wrap."""
    found: list[Any] = []
    for sampler in (loader.sampler, loader.batch_sampler):
        while sampler is not None and not any(sampler is known for known in found):
            found.append(sampler)
            sampler = getattr(sampler, "sampler", None)
    return found


def is_torch_loader(batches: object) -> bool:
    """Whether it is a DataLoader that works as PyTorch's own does: a subclass may iterate in its own way."""
    return isinstance(batches, DataLoader) and type(batches).__iter__ is DataLoader.__iter__


def refuse_split(batches: object) -> None:
    """See that a loader is not split for several processes already.

    Raises:
        DataError: it is.
    """
    if isinstance(batches, DataLoader) and any(isinstance(s, DistributedSampler) for s in samplers_of(batches)):
        raise DataError(
            "this DataLoader has a DistributedSampler, which leaves each process only its own samples, and lockstep "
            "would split those again: leave the sampler out (use shuffle=True), and set batch_size to the global batch"
        )
