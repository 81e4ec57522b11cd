"""Errors of the user's dataset or ``collate_fn``, with the samples and the step that caused
them."""

from __future__ import annotations

import errno
import itertools
import operator
import reprlib
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from lockstep._base.errors import DataError
from lockstep._data.streams import Purpose

_MOST_LISTED = 16
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EIO, errno.ESTALE}
"""System errors that depend on the state of the process or machine, not on the file."""


@dataclass(frozen=True, slots=True)
class SampleErrors:
    """The dataset that caused an error. The methods return the DataError to raise from that error,
    with the samples.

    ``step`` is the step for which the samples were fetched (in an evaluation, the number of the
    batch), ``shard`` its shard; None: unknown.
    """

    dataset: Any
    """The dataset, or any iterable of ready batches."""
    rank: int
    is_ready: bool
    """Whether the items are ready batches."""

    def read(
        self, error: Exception, index: Any, purpose: Purpose, step: int | None = None, shard: int | None = None
    ) -> DataError:
        """Returns the error for a sample (or ready batch) that could not be read. ``index``: the
        index of the sample, or its position in a stream."""
        number, name = _shown(index), "dataset" if isinstance(self.dataset, Dataset) else "batches"
        can_index = isinstance(self.dataset, Dataset) and not isinstance(self.dataset, IterableDataset)
        again = f"{name}[{number}]" if can_index else f"next(itertools.islice({name}, {number}, None))"
        return self._failed(error, "", [index], self._where(purpose, step, shard), again)

    def read_one_of(
        self, error: Exception, indices: Any, purpose: Purpose, step: int | None = None, shard: int | None = None
    ) -> DataError:
        """Returns the error for samples that were requested in one call, if it is unknown which of
        them could not be read."""
        prefix = "" if len(indices) == 1 else "one of "
        return self._failed(error, prefix, indices, self._where(purpose, step, shard), "dataset.__getitems__([...])")

    def collating(
        self, error: Exception, indices: Any, purpose: Purpose, step: int | None = None, shard: int | None = None
    ) -> DataError:
        """Returns the error for samples that were read but could not be collated."""
        again = "collate_fn(batch)" if self.is_ready else "collate_fn([...])"
        return self._failed(error, "collating ", indices, self._where(purpose, step, shard), again)

    def _where(self, purpose: Purpose, step: int | None, shard: int | None) -> str:
        # A ready batch without samples takes no step, so when a ready batch is read, its step is
        # unknown.
        if purpose is Purpose.EVALUATE:
            return ", in an evaluation" if self.is_ready or step is None else f", in batch {step} of an evaluation"
        if self.is_ready or step is None:
            return ""
        return f", in step {step}" if shard is None else f", in step {step}, shard {shard}"

    def _failed(self, error: Exception, prefix: str, indices: Any, where: str, again: str) -> DataError:
        number, kind = len(indices), type(error).__name__
        noun = ("batch" if self.is_ready else "sample") if number == 1 else "samples"
        listed = ", ".join(map(_shown, itertools.islice(indices, _MOST_LISTED)))
        if number > _MOST_LISTED:
            listed += f", ... ({number} in all)"
        # PyTorch raises a worker's error with the traceback as its text, so the DataError is made
        # in the worker, where the error is still itself.
        try:
            message = str(error).strip().rstrip(".")
        except Exception:  # a user's __str__ may raise anything
            message = ""
        return DataError(
            f"{prefix}{noun} {listed} of {_name(self.dataset)} failed on rank {self.rank}{where}, with "
            f"{kind}{': ' if message else ''}{message}. {_advice(error, noun, again, is_one=number == 1)}",
            code="sample-failed",
        )


def _advice(error: Exception, noun: str, again: str, *, is_one: bool) -> str:
    """Returns the advice: reproduce the error with the samples alone, unless it depends on the
    process that has read them."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _EXHAUSTED):
        return (
            f"The cause is not {'that' if is_one else 'those'} {noun}: the process or its machine has run out of a resource"
        )
    same = f"To reproduce it, run `{again}`"
    if get_worker_info() is None:
        return same
    return f"{same}. If that works, try num_workers=0, without loader workers"


def _shown(index: Any) -> str:
    try:  # accepts tensors and NumPy integers too
        return str(operator.index(index))
    except (TypeError, ValueError):
        return reprlib.repr(index)


def _name(dataset: Any) -> str:
    name = type(dataset).__name__
    return f"{name} of {_name(dataset.dataset)}" if isinstance(dataset, Subset) else name
