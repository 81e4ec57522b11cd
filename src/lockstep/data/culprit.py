"""Errors of the user's data set, and of its ``collate_fn``: which samples of which step they come from."""

from __future__ import annotations

import itertools
import operator
import reprlib
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, IterableDataset, Subset

from lockstep.data.streams import Purpose
from lockstep.errors import DataError

_MOST_LISTED = 16


@dataclass(frozen=True, slots=True)
class Culprit:
    """The data set that an error comes from. Its methods make the error to raise from it, which says at which sample.

    ``step`` is the number of the step in which the samples were wanted (of the batch, in an evaluation), ``shard`` the
    shard for which: None where that is not known.
    """

    dataset: Any
    """Or any iterable of ready batches."""
    rank: int
    is_ready: bool
    """Whether what is read from it are batches already."""

    def read(
        self, error: Exception, index: Any, purpose: Purpose, step: int | None = None, shard: int | None = None
    ) -> DataError:
        """A sample (or ready batch) could not be read: the one of this index, or at this position of a stream."""
        number, name = _shown(index), "dataset" if isinstance(self.dataset, Dataset) else "batches"
        can_index = isinstance(self.dataset, Dataset) and not isinstance(self.dataset, IterableDataset)
        again = f"{name}[{number}]" if can_index else f"next(itertools.islice({name}, {number}, None))"
        return self._failed(error, "", [index], self._where(purpose, step, shard), again)

    def read_one_of(self, error: Exception, indices: Any, purpose: Purpose, step: int, shard: int) -> DataError:
        """One of several samples that were asked for at once could not be read: nobody sees which."""
        what = "" if len(indices) == 1 else "one of "
        return self._failed(error, what, indices, self._where(purpose, step, shard), "dataset.__getitems__([...])")

    def collating(
        self, error: Exception, indices: Any, purpose: Purpose, step: int | None = None, shard: int | None = None
    ) -> DataError:
        """The samples were read, and could not be made a batch of."""
        again = "collate_fn(batch)" if self.is_ready else "collate_fn([...])"
        return self._failed(error, "collating ", indices, self._where(purpose, step, shard), again)

    def _where(self, purpose: Purpose, step: int | None, shard: int | None) -> str:
        # A ready batch without samples takes no step, so the steps of ready batches are not known when they are read.
        if purpose is Purpose.EVALUATE:
            return ", in an evaluation" if self.is_ready or step is None else f", in batch {step} of an evaluation"
        if self.is_ready or step is None:
            return ""
        return f", in step {step}" if shard is None else f", in step {step}, shard {shard}"

    def _failed(self, error: Exception, what: str, indices: Any, where: str, again: str) -> DataError:
        number, kind = len(indices), type(error).__name__
        noun = ("batch" if self.is_ready else "sample") if number == 1 else "samples"
        listed = ", ".join(map(_shown, itertools.islice(indices, _MOST_LISTED)))
        if number > _MOST_LISTED:
            listed += f", ... ({number} in all)"
        try:
            told = str(error).strip().rstrip(".")
        except Exception:  # a user's __str__ may do anything
            told = ""
        return DataError(
            f"{what}{noun} {listed} of {_name(self.dataset)} failed on rank {self.rank}{where}, with "
            f"{kind}{': ' if told else ''}{told}. Look at {'that' if number == 1 else 'those'} {noun}: `{again}` in a "
            "shell should give the same error"
        )


def _shown(index: Any) -> str:
    try:  # also a tensor, or a number of numpy's
        return str(operator.index(index))
    except (TypeError, ValueError):
        return reprlib.repr(index)


def _name(dataset: Any) -> str:
    name = type(dataset).__name__
    return f"{name} of {_name(dataset.dataset)}" if isinstance(dataset, Subset) else name
