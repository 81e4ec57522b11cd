"""The loops that ``shards.py`` and ``instructions.py`` compare. Each is one pass over a loader, and
calls ``end`` after every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

criterion = nn.CrossEntropyLoss()


def whole_batches(model: nn.Module, optimizer: Any, loader: Any, end: Callable[[], None]) -> None:
    """The plain loop."""
    for inputs, labels in loader:
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end()


def micro_batches(model: nn.Module, optimizer: Any, loader: Any, parts: int, end: Callable[[], None]) -> None:
    """Each batch in parts, as people write it by hand."""
    for inputs, labels in loader:
        for x, y in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
            loss = criterion(model(x), y) / parts
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end()


def micro_batches_of_ddp(
    model: DistributedDataParallel, optimizer: Any, loader: Any, parts: int, end: Callable[[], None]
) -> None:
    """The same on several processes: all parts but the last under no_sync(), as in the
    documentation of DDP."""
    for inputs, labels in loader:
        *others, last = zip(inputs.chunk(parts), labels.chunk(parts), strict=True)
        with model.no_sync():
            for x, y in others:
                loss = criterion(model(x), y) / parts
                loss.backward()
        x, y = last
        loss = criterion(model(x), y) / parts
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end()


def shards(team: Any, model: nn.Module, optimizer: Any, loader: Any, end: Callable[[], None]) -> None:
    """lockstep's loop."""
    for batch in loader:
        for inputs, labels in batch.shards:
            loss = criterion(model(inputs), labels)
            team.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        end()
