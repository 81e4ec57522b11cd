"""Fetching and collating samples: here, or in loader workers, with the same result.

A request names its place in the run, and the random streams of that place are started before the user's data set and
``collate_fn`` are called, wherever that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from lockstep.data.batches import map_tensors
from lockstep.data.streams import Purpose, reseed


@dataclass(frozen=True, slots=True)
class Request:
    """Some samples wanted as one batch."""

    purpose: Purpose
    place: tuple[int, ...]
    indices: Sequence[Any]


class Fetcher(Protocol):
    """Makes one batch of the samples that a request names."""

    def __getitem__(self, request: Request) -> Any: ...


class SampleFetcher(Dataset[Any]):
    """Sample by sample (or with the data set's own ``__getitems__``), then collated: what a DataLoader does."""

    def __init__(self, seed: int, dataset: Dataset[Any], collate_fn: Callable[[Any], Any]) -> None:
        self._seed = seed
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._get_items = getattr(dataset, "__getitems__", None)

    def __getitem__(self, request: Request) -> Any:
        reseed(self._seed, request.purpose, *request.place)
        if self._get_items:
            samples = self._get_items(request.indices)
        else:
            dataset = self._dataset
            samples = [dataset[index] for index in request.indices]
        return self._collate_fn(samples)


class TableFetcher(Dataset[Any]):
    """Whole batches at once, for data that is nothing but tensors. No user code runs, so no stream is started."""

    def __init__(self, tensors: Sequence[torch.Tensor], rows: torch.Tensor | None) -> None:
        self._tensors = tensors
        self._rows = rows

    def __getitem__(self, request: Request) -> list[torch.Tensor]:
        rows = torch.as_tensor(request.indices)
        if self._rows is not None:
            rows = self._rows[rows]
        return [tensor.index_select(0, rows) for tensor in self._tensors]


def choose_fetcher(seed: int, dataset: Dataset[Any], collate_fn: Callable[[Any], Any]) -> Fetcher:
    """The quickest way that gives what a DataLoader would give."""
    if collate_fn is default_collate:
        rows = None
        if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
            rows = torch.as_tensor(dataset.indices, dtype=torch.long)
            dataset = dataset.dataset
        if type(dataset) is TensorDataset and all(tensor.layout == torch.strided for tensor in dataset.tensors):
            return TableFetcher(dataset.tensors, rows)
    return SampleFetcher(seed, dataset, collate_fn)


class _Requests:
    """What a DataLoader takes for a sampler: it hands on the requests of the pass at hand."""

    def __init__(self) -> None:
        self.current: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.current)


def _as_is(batch: Any) -> Any:
    return batch


class FetchPool:
    """Answers requests in order, with the workers that the user's loader asks for (or here, if it asks for none).

    Args:
        fetcher: makes a batch from a request.
        like: the user's loader, whose number of workers, pinning, time limit and so on are kept.
    """

    def __init__(self, fetcher: Fetcher, like: DataLoader[Any]) -> None:
        self._fetcher = fetcher
        self._requests = _Requests()
        self._pin_memory = bool(like.pin_memory) and torch.cuda.is_available()
        self._workers: DataLoader[Any] | None = None
        if like.num_workers > 0:
            self._workers = worker_loader(fetcher, like, sampler=self._requests)

    def run(self, requests: Iterable[Request]) -> Iterator[Any]:
        """One batch for each request. Workers run ahead of the loop; without them a batch is made when it is asked for."""
        if self._workers is not None:
            self._requests.current = requests
            yield from self._workers
            return
        for request in requests:
            with single_threaded():
                batch = self._fetcher[request]
            yield map_tensors(torch.Tensor.pin_memory, batch) if self._pin_memory else batch


class single_threaded:  # noqa: N801 - a context manager, written as a class because it stands in the loop
    """One thread for what is fetched in this process, as in loader workers: the number of threads can change bits."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self._before != 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._before != 1:
            torch.set_num_threads(self._before)


def worker_loader(dataset: Any, like: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """A DataLoader that hands on what ``dataset`` yields, one by one, with the workers and habits of ``like``."""
    options: dict[str, Any] = {
        "batch_size": None,
        "collate_fn": _as_is,
        "num_workers": like.num_workers,
        "pin_memory": bool(like.pin_memory) and torch.cuda.is_available(),
        "timeout": like.timeout,
        "worker_init_fn": like.worker_init_fn,
        "multiprocessing_context": like.multiprocessing_context,
        "prefetch_factor": like.prefetch_factor,
        "persistent_workers": like.persistent_workers,
    }
    return DataLoader(dataset, **{**options, **changes})
