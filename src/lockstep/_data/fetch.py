"""Fetches and collates samples, in this process or in loader workers, with the same result.

::

    Request(purpose, key, indices)
       |  num_workers = 0: in this process, on demand, with one thread
       |  num_workers > 0: in a worker of a DataLoader whose "sampler" yields the requests
       v
    reseed(key) -> dataset[index] for each index -> collate_fn -> (pinned) -> the loop

Three things make the result independent of the place: the random streams start from the key of the
request, numeric libraries use one thread (more threads split sums differently), and ``set_epoch``
is called on each worker's copy of the dataset.
"""

from __future__ import annotations

import array
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)

from lockstep._base import worker_note
from lockstep._base.errors import DataError
from lockstep._base.stopping import leave_signals_to_parent
from lockstep._data.batches import as_is, pin
from lockstep._data.changed_samples import ChangedSamples, changes_again, definition_of
from lockstep._data.many_workers import warn_of_many_workers
from lockstep._data.sample_errors import SampleErrors
from lockstep._data.streams import Purpose, derive, preserve_rng, remember_rng, reseed, start_streams
from lockstep._data.torch_loader import USUAL_PREFETCH
from lockstep._data.worker_sockets import check_room_for_sockets
from lockstep._world import devices
from lockstep._world.machine.threads import Lowered, use_threads


@dataclass(slots=True)
class Request:
    """A request for samples that make one batch. (Immutable by convention; a frozen dataclass takes
    four times as long to create.)"""

    purpose: Purpose
    """The purpose of the random streams."""
    key: tuple[int, ...]
    """The key of the random streams."""
    indices: Any
    """A sequence of sample indices; for datasets of ready batches, the index of one batch."""
    epoch: int | None = None
    """The epoch for datasets with ``set_epoch``; None: not set."""


class Fetcher(Protocol):
    """A function from requests to batches."""

    dataset: Dataset[Any]
    """The user's dataset."""

    def __getitem__(self, request: Request) -> Any: ...


class SampleFetcher(Dataset[Any]):
    """The fetcher that reads sample by sample (or by the dataset's ``__getitems__``) and collates,
    as a DataLoader does."""

    _is_ready = False

    def __init__(self, seed: int, dataset: Dataset[Any], collate_fn: Callable[[Any], Any], rank: int) -> None:
        self.dataset = dataset
        self._culprit = SampleErrors(dataset, rank, self._is_ready)
        self._seed = seed
        self._collate_fn = _collate if collate_fn is default_collate else collate_fn
        self._get_items = getattr(dataset, "__getitems__", None)
        self._is_subset = type(dataset) is Subset and not callable(getattr(dataset.dataset, "__getitems__", None))
        # PyTorch's own functions write to no sample, so only others are watched.
        self._changed = ChangedSamples(dataset, speaks=rank == 0 and collate_fn not in (default_collate, default_convert))
        self._num_collated = 0
        self._set_epoch = getattr(dataset, "set_epoch", None)
        self._epoch: int | None = None

    def __getitem__(self, request: Request) -> Any:
        if self._set_epoch is not None and request.epoch != self._epoch and get_worker_info() is not None:
            # A worker has a copy of the dataset, and may be used for several epochs.
            self._epoch = request.epoch
            # With the stream of the training process's own call, so that all copies are equal.
            reseed(self._seed, Purpose.SET_EPOCH, request.epoch or 0)
            self._set_epoch(request.epoch)
        reseed(self._seed, request.purpose, *request.key)
        worker_note.cell[0] = 1
        samples = self._get(request)
        worker_note.cell[0] = 0
        self._num_collated += 1
        before = self._changed.look(self._num_collated, [samples]) if self._num_collated >= self._changed.next else None
        restore = None if before is None else remember_rng()
        try:
            batch = self._collate_fn(samples)
        except Exception as error:
            raise self._culprit.collating(error, self._indices(request), request.purpose, *self._where(request)) from error
        if before is not None:
            self._changed.compare(
                before, lambda: definition_of(self._collate_fn), lambda: self._collates_otherwise(samples, batch, restore)
            )
        return batch

    def _collates_otherwise(self, samples: Any, batch: Any, restore: Callable[[], None] | None) -> bool:
        """Returns whether samples give another batch, or change again, when they are collated
        again."""
        with preserve_rng():
            if restore is not None:
                restore()
            return changes_again(samples, self._collate_fn, batch)

    def _indices(self, request: Request) -> Any:
        return request.indices

    def _where(self, request: Request) -> tuple[int, ...]:
        """Returns the step and the shard, for error messages."""
        return request.key[1:3]

    def _get(self, request: Request) -> Any:
        dataset: Any = self.dataset
        indices, samples, index = request.indices, [], None
        if self._get_items and not self._is_subset:
            try:
                return self._get_items(indices)
            except Exception as error:
                raise self._culprit.read_one_of(error, indices, request.purpose, *self._where(request)) from error
        try:
            # The same as Subset.__getitems__, but here the failing sample is known.
            if self._is_subset:
                whole, rows = dataset.dataset, dataset.indices
                for index in indices:
                    samples.append(whole[rows[index]])
            else:
                for index in indices:
                    samples.append(dataset[index])
        except Exception as error:
            raise self._culprit.read(error, index, request.purpose, *self._where(request)) from error
        return samples


class RowFetcher(SampleFetcher):
    """The fetcher with a separate random stream for each sample. The key of the request contains
    the first row, and the rows are consecutive. So the draws of a sample do not depend on the
    number of samples that are fetched with it.

    A dataset with ``__getitems__`` fetches all rows in one call, in the stream of the first row.
    """

    def _where(self, request: Request) -> tuple[int, ...]:
        return ()  # the steps of a loader without a run are numbered differently than in the script

    def _get(self, request: Request) -> Any:
        if self._get_items and not self._is_subset:
            return super()._get(request)
        samples: list[Any] = []
        loader, step, first, part = request.key
        for row, index in enumerate(request.indices, first):
            # There may be thousands of rows: too many to keep the seeds of their next steps.
            start_streams(derive(self._seed, request.purpose, loader, step, row, part, 0))
            samples += super()._get(Request(request.purpose, request.key, [index]))
        reseed(self._seed, request.purpose, *request.key)  # for collate_fn
        return samples


class ReadyFetcher(SampleFetcher):
    """The fetcher of ready batches (``DataLoader(..., batch_size=None)``)."""

    _is_ready = True

    def _indices(self, request: Request) -> Any:
        return [request.indices]

    def _get(self, request: Request) -> Any:
        try:
            return self.dataset[request.indices]
        except Exception as error:
            raise self._culprit.read(error, request.indices, request.purpose) from error


class TableFetcher(Dataset[Any]):
    """The fetcher for a ``TensorDataset``, or a ``Subset`` of one, which reads a batch in one call.
    No user code runs, so no random stream is started.

    Args:
        by_sample: the fetcher to use after a failure, since its error contains the sample.
    """

    def __init__(self, by_sample: Fetcher) -> None:
        self.dataset: Any = by_sample.dataset
        self._by_sample = by_sample
        self._is_subset = type(self.dataset) is Subset

    def __getitem__(self, request: Request) -> Any:
        try:
            table, indices = self.dataset, request.indices
            if self._is_subset:
                chosen, table = table.indices, table.dataset
                indices = [chosen[index] for index in indices]
            # Read for each request, since the script may replace the tensors.
            rows, tensors = _as_rows(indices), table.tensors
            try:
                return [t.index_select(0, rows) if t.is_cpu else t[rows.to(t.device)] for t in tensors]
            except IndexError:  # negative indices; wrong ones get the usual error below
                return [tensor[rows.to(tensor.device)] for tensor in tensors]
        # Fetched again outside of this block, so that the error of the sample has no context.
        except Exception:
            pass
        return self._by_sample[request]


def _as_rows(indices: Any) -> torch.Tensor:
    try:  # the quickest way from a list of integers to a tensor
        return torch.frombuffer(array.array("q", indices), dtype=torch.int64)
    except (TypeError, ValueError):
        return torch.as_tensor(indices)


def _collate(samples: Any) -> Any:
    """Collates as ``default_collate``, with a fast path for plain tuples of plain tensors. As
    there, the first sample determines the kind of all."""
    if (
        get_worker_info() is None
        and type(samples) is list
        and type(samples[0]) is tuple
        and all(type(part) is torch.Tensor and part.layout == torch.strided and not part.is_nested for part in samples[0])
    ):
        try:
            # In a worker default_collate is used: it stacks into shared memory.
            return [torch.stack(column) for column in zip(*samples, strict=True)]
        except (TypeError, ValueError, RuntimeError):  # they differ: collated again, for the usual error
            pass
    return default_collate(samples)


def choose_fetcher(seed: int, like: DataLoader[Any], rank: int = 0, *, by_row: bool = False) -> Fetcher:
    """Returns the fastest fetcher with the results of the user's DataLoader. Its errors contain
    ``rank``. ``by_row``: whether to use a ``RowFetcher``."""
    dataset, collate_fn = like.dataset, like.collate_fn
    if like.batch_sampler is None:
        return ReadyFetcher(seed, dataset, collate_fn, rank)
    by_sample = (RowFetcher if by_row else SampleFetcher)(seed, dataset, collate_fn, rank)
    table: Any = dataset.dataset if type(dataset) is Subset else dataset
    is_table = type(table) is TensorDataset and all(tensor.layout == torch.strided for tensor in table.tensors)
    return TableFetcher(by_sample) if is_table and collate_fn is default_collate else by_sample


class _Requests:
    """The sampler of the DataLoader with the workers: yields the requests of the current pass."""

    def __init__(self) -> None:
        self.current: Iterable[Request] = ()
        self.when_started: Callable[[], None] = _nothing

    def __iter__(self) -> Iterator[Request]:
        self.when_started()  # a DataLoader asks for the first request after starting its workers
        yield from self.current


def _nothing() -> None:
    pass


@dataclass(slots=True)
class _ToPin:
    """A batch on its way from a worker. PyTorch's thread pins it by calling its method, since its
    own rules leave dataclasses in memory that is not pinned."""

    batch: Any

    def pin_memory(self) -> Any:
        """Returns the batch in pinned memory."""
        return pin(self.batch)


def _pins(like: DataLoader[Any]) -> bool:
    """Whether PyTorch pins the batches of this loader (for MPS it does not)."""
    return bool(like.pin_memory) and devices.in_use() is not None and devices.accelerator() != "mps"


class FetchPool:
    """The processes that fetch requests in order: as many workers as the user's loader has, or this
    process.

    Args:
        fetcher: the function from requests to batches.
        like: the user's loader, with the number of workers, pinning, timeout and other options.
    """

    def __init__(self, fetcher: Fetcher, like: DataLoader[Any]) -> None:
        self._fetcher = fetcher
        self._requests = _Requests()
        self._pin_memory = _pins(like)
        collate = {"collate_fn": _ToPin} if self._pin_memory else {}
        self._workers = worker_loader(fetcher, like, sampler=self._requests, **collate) if like.num_workers > 0 else None

    def run(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yields one batch for each request. Workers run ahead of the loop. Without them each batch
        is fetched on demand."""
        if self._workers is not None:
            return self._by_workers(self._workers, requests)
        # A TableFetcher only copies rows, which any number of threads does with the same result.
        is_copied = isinstance(self._fetcher, TableFetcher)
        fetched = map(self._fetcher.__getitem__, requests) if is_copied else self._fetch(requests)
        return map(pin, fetched) if self._pin_memory else fetched

    def _by_workers(self, workers: DataLoader[Any], requests: Iterable[Request]) -> Iterator[Any]:
        """Yields the batches from the workers. (A generator, so that workers start with the first
        batch: until then another pass may begin.)"""
        self._requests.current = requests
        yield from from_workers(workers, self._requests)

    def _fetch(self, requests: Iterable[Request]) -> Iterator[Any]:
        one_thread = single_threaded()
        for request in requests:
            with one_thread:
                batch = self._fetcher[request]
            yield batch


def from_workers(loader: DataLoader[Any], requests: _Requests | None = None) -> Iterator[Any]:
    """Iterates over a loader with workers. ``requests``: its sampler, if that is a ``_Requests``.

    PyTorch raises a worker's error with the text of its traceback as the message. A DataError is
    raised again with its original message, and PyTorch's error as its cause.
    """
    try:
        yield from _started(loader, requests)
    except Exception as error:
        _release_iterator(error)
        if not isinstance(error, DataError):
            raise
        _, separator, message = str(error).rpartition(f"{DataError.__module__}.{DataError.__qualname__}: ")
        if not separator:
            raise
        raise DataError(message.rstrip(), code="sample-failed") from error


def _release_iterator(error: Exception) -> None:
    """Makes PyTorch's iterator end its workers now, although frames of its error refer to it.

    Collected later as garbage, after its queues, it would wait 5 s for each worker. A process that
    is forked in the meantime would also collect it, and close files of other processes.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == DataLoader.__module__:
            frame.clear()


def _started(loader: DataLoader[Any], requests: _Requests | None) -> Iterator[Any]:
    """Returns the loader's iterator, with workers in which NumPy uses one thread. (PyTorch's
    workers set the number for PyTorch only.)

    The limit is set in this process before the fork. Setting it in the worker comes too late:
    OpenBLAS's threads do not survive a fork, and setting their number first creates all of them
    again, which then spin for a while.
    """
    lowered = Lowered()
    if requests is not None:
        # The user's sampler runs in this process, with all threads, as without workers.
        requests.when_started = lowered.put_back
    try:
        return iter(loader)
    finally:
        lowered.put_back()


class single_threaded:  # noqa: N801 - a context manager, written as a class because it is in the loop
    """The limit of one thread for fetching in this process, as in loader workers: the number of
    threads can change bits.

    It is entered for each batch of a pass. Once all libraries have one thread, they are checked
    again only after a module was imported, since the check takes as long as all the rest. So a
    change by the script takes effect in the next pass."""

    def __init__(self) -> None:
        self._lowered: Lowered | None = None
        self._num_modules = -1
        """The number of imported modules when all libraries had one thread."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self._before != 1:
            torch.set_num_threads(1)
        if len(sys.modules) != self._num_modules:
            self._lowered = Lowered()
            if not self._lowered.has_changed:
                self._num_modules = len(sys.modules)

    def __exit__(self, *_: object) -> None:
        if self._lowered is not None:
            self._lowered.put_back()
            self._lowered = None
        if self._before != 1:
            torch.set_num_threads(self._before)


def set_workers(batches: Any, number: int | None) -> None:
    """Changes the number of workers of a DataLoader; None: unchanged. Other iterables have none.

    Raises:
        ConfigError: the workers could not send batches.
    """
    if not isinstance(batches, DataLoader):
        return
    if number is not None:
        batches.num_workers = number
    if batches.num_workers == 0:
        # PyTorch refuses a timeout without workers.
        batches.timeout = 0
    else:
        batches.prefetch_factor = batches.prefetch_factor or USUAL_PREFETCH
        check_room_for_sockets(batches.num_workers)
        warn_of_many_workers(batches)


class _StartWorker:
    """The initialization of a worker: show the user's dataset as ``get_worker_info().dataset``,
    leave signals to the training process, use one thread, then call the user's
    ``worker_init_fn``."""

    def __init__(self, user_function: Callable[[int], None] | None) -> None:
        self._user_function = user_function

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        # The __setattr__ of WorkerInfo refuses changes.
        object.__setattr__(info, "dataset", info.dataset.dataset)
        leave_signals_to_parent()
        use_threads(1)  # for workers that were not forked, and libraries that were loaded since
        if self._user_function is not None:
            self._user_function(worker)


def worker_loader(dataset: Any, like: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Returns a DataLoader that yields the items of ``dataset`` unchanged, with the workers and
    options of ``like``.

    User code in workers sees ``dataset.dataset`` as its dataset.
    """
    options: dict[str, Any] = {
        "batch_size": None,
        "collate_fn": as_is,
        "num_workers": like.num_workers,
        "pin_memory": _pins(like),
        "timeout": like.timeout,
        "worker_init_fn": _StartWorker(like.worker_init_fn),
        "multiprocessing_context": like.multiprocessing_context,
        "prefetch_factor": like.prefetch_factor,
        "persistent_workers": like.persistent_workers,
    }
    return DataLoader(dataset, **{**options, **changes})
