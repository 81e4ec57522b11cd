"""One pass over an evaluation loader: its batches, and the results that the script records.

::

    batch           0   1   2   3   4        every rank runs the outer loop for all batches
    rank (W = 2)    0   1   0   1   0        one rank gets the samples of each
    end of block    gather (batch, name, value) from all ranks, sort by batch, add in that order

Batches are not split into shards, as training batches are: a batch has the same samples, and the
same kernels, as on a single process. Values are added in the order of batches at the end, and not
as they are ready, because the sum of floats depends on its order.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from lockstep._base.errors import ConfigError, UsageError
from lockstep._data.batch import GlobalBatch
from lockstep._data.evaluation_round import Round
from lockstep._data.evaluation_source import AssignedBatch, EvaluationKey, EvaluationSource
from lockstep._data.metric_updates import MetricUpdates
from lockstep._data.shared import gather, keep
from lockstep._data.uploads import Uploads
from lockstep._data.values import SUM, Entry, Weight, check_weight, checked, combine, entry_of, is_on_device, read, take
from lockstep._world.arrivals import Arrivals
from lockstep._world.comm.collectives import Collectives
from lockstep._world.comm.raw_collectives import EvaluationCollectives

LINES = (
    "The lines: `for images, labels in evaluation.shards: ... evaluation.add(accuracy=...)`, and evaluation['accuracy'] after "
    "the block. (To do something between batches: `for batch in evaluation: for images, labels in batch.shards: ... "
    "batch.add(accuracy=...)`.)"
)
Place = tuple[int, int]
"""The place of a result: the number of the batch, and of the pass over its shards."""


class RunningEvaluations:
    """The evaluation batches over whose shards the script is looping: usually one, several within
    ``zip(a.shards, b.shards)``."""

    def __init__(self) -> None:
        self._batches: list[EvaluationBatch] = []
        self.innermost: EvaluationBatch | None = None
        """The batch whose loop began last; None: there is no loop."""

    def __contains__(self, batch: object) -> bool:
        return batch in self._batches

    def begin(self, batch: EvaluationBatch) -> None:
        """Begins a loop, inside the running ones."""
        self._batches.append(batch)
        self.innermost = batch

    def end(self, batch: EvaluationBatch) -> None:
        """Ends a loop and all loops inside it: ``zip`` exhausts only the first."""
        del self._batches[self._batches.index(batch) :]
        self.innermost = self._batches[-1] if self._batches else None

    def end_all(self) -> None:
        """Ends all loops, which the script has left."""
        self._batches, self.innermost = [], None


class Guard(Protocol):
    """The part of the loop that knows the position of the script."""

    evaluations: RunningEvaluations
    """Of all evaluations of the run."""

    def check_outside(self, call: str) -> None:
        """Raises UsageError for ``call`` inside ``batch.shards``."""


class EvaluationPass:
    """A pass over the batches of a loader, with the values that the script adds for them.

    Args:
        source: the loader's batches.
        key: the key of the evaluation.
        collectives: the collectives over all ranks.
        device: the device for samples.
        guard: the part of the loop that knows the position of the script.
        metrics: the metrics that every rank knows already, as in ``MetricUpdates``.
        together: whether the model's forward pass is a collective, so that every rank must run it
            equally often. Then W batches run at the same time.
        shares: whether results are shared. Then, too, W batches run at the same time: one after
            another, each would wait for the one before.
        of_script: refuses the script's own collectives inside shards; None: they cannot be
            distinguished from the collectives of the model's forward pass.
    """

    def __init__(
        self,
        source: EvaluationSource,
        key: EvaluationKey,
        collectives: Collectives,
        device: torch.device,
        guard: Guard,
        metrics: Sequence[Any] = (),
        *,
        together: bool = False,
        shares: bool = False,
        of_script: EvaluationCollectives | None = None,
    ) -> None:
        self._source = source
        self._key = key
        self._collectives = collectives
        self._device = device
        self._uploads = None if device.type == "cpu" else Uploads(device, source.batches)
        self._guard = guard
        self._together = together
        self._shares = shares
        self._of_script = of_script
        self._num_at_once = collectives.size if together or shares else 1
        self._is_open = self._has_begun = False
        self._round = Round(())
        self._dealt: Generator[AssignedBatch] | None = None
        self._is_short = False
        """Whether some ranks have no batch in the current round, which is the last."""
        self.current: EvaluationBatch | None = None
        """The batch of the outer loop; None: outside of it."""
        self._requested: set[Place] = set()
        """The passes over shards that the script has requested. The same on every rank."""
        self._place: Place | None = None
        """The place of the samples that the script received last; None: their results do not
        count."""
        self._added: list[tuple[Place, str, str, Any, Weight]] = []
        self._arrivals = Arrivals()
        """What of it is on a device, with the streams in which the script has added it."""
        self._updates = MetricUpdates(metrics)

    # The block and the outer loop

    def begin(self) -> None:
        """Enter the block."""
        self._guard.check_outside("an evaluation")
        self._is_open = True

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Leave the block."""
        self._is_open = False
        self.current, self._round = None, Round(())
        if self._dealt is not None:
            self._dealt.close()  # the script may have left the loop and still have its iterator
        if self._uploads is not None:
            self._uploads.settle()
        try:
            yield
        finally:
            self._guard.evaluations.end_all()

    def batches(self) -> Iterator[EvaluationBatch]:
        """All batches of the loader, on every rank. Can be called once."""
        self._check_open()
        if self._has_begun:
            raise UsageError(
                "an evaluation is iterated once. Call team.evaluate() again for another pass over its loader.",
                code="evaluation-iterated-twice",
            )
        self._guard.check_outside("the loop over an evaluation")
        self._has_begun = True
        return self._iterate()

    def _iterate(self) -> Iterator[EvaluationBatch]:
        self._dealt = dealt = self._source.deal(self._key)
        size = self._num_at_once
        rounds = zip(dealt, strict=True) if size == 1 else iter(lambda: tuple(itertools.islice(dealt, size)), ())
        for batches in rounds:
            self._round, self._is_short = Round(batches), self._together and len(batches) < size
            for number, num_samples, _ in batches:
                self.current = batch = EvaluationBatch(self, number, num_samples)
                yield batch
                if self._uploads is not None:
                    self._uploads.settle()
                self._check_open()
                if self._guard.evaluations.innermost is not None:
                    self._refuse_left()
        self.current = None

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(
                "iterate inside the block: `with team.evaluate(model, loader) as evaluation:`",
                code="evaluation-outside-block",
            )

    def _refuse_left(self) -> None:
        try:
            self._guard.check_outside("the next batch")
        finally:
            self._guard.evaluations.end_all()

    # Called by the batches

    def run(self, batch: EvaluationBatch, turn: int) -> Iterator[Any]:
        """Returns an iterator over the shards of the current batch. ``turn``: the number of earlier
        passes over them."""
        self._guard.check_outside("another loop over batch.shards")
        if self.current is not batch:
            raise UsageError(
                f"batch.shards of batch {batch.place} of an evaluation was used after the next batch. Loop over the shards of "
                "each batch in the body of the loop that yields it.",
                code="evaluation-batch-ended",
            )
        self._requested.add((batch.place, turn))
        self._round.num_requested = max(self._round.num_requested, turn + 1)
        return self._run(batch, turn)

    def _run(self, batch: EvaluationBatch, turn: int) -> Iterator[Any]:
        running = self._guard.evaluations
        for samples in self._take(turn):
            if self._uploads is not None:
                samples = self._uploads.move(samples)
            if self._place is not None:
                self._source.reseed(self._key, *self._place)
            running.begin(batch)
            if self._of_script is not None:
                self._of_script.begin_shard()
            yield samples
            if self._of_script is not None:
                self._of_script.end_shard(batch.number)
            running.end(batch)
        self._source.reseed_between(self._key, batch.place, turn + 1)

    def _take(self, turn: int) -> Sequence[Any]:
        """Returns the samples for a pass over the current batch; none: they belong to another rank.

        If the forward pass is a collective, every rank must run it equally often. So the batches of
        a round, one for each rank, run at the same time, when the shards of the first are
        requested. Nothing that the outer loop does can separate them. A rank without a batch in the
        last round runs rank 0's, and its results are ignored.
        """
        now = self._round
        if turn < now.num_passes:
            return ()
        if now.num_passes == 0:
            now.fetch()
            # The forward pass is a collective: a rank without a batch must take part with some
            # batch.
            if self._is_short:
                first = self._collectives.broadcast_object(now.samples)
                now.samples = now.samples or first
        now.num_passes = turn + 1
        self._place = None if now.number is None else (now.number, turn)
        return now.samples

    def add(
        self,
        batch: EvaluationBatch | None,
        weight: float | Tensor | None,
        values: dict[str, Any],
        reduction: str | None = None,
    ) -> None:
        """Records values of the running batch."""
        if batch not in self._guard.evaluations:
            raise UsageError(
                f"add({', '.join(values)}) outside of the loop over shards: {LINES}", code="evaluation-outside-shards"
            )
        if self._place is None:
            return
        given, num_samples = check_weight(weight, reduction, "batch.add"), self._round.num_samples
        weight = 1.0 if reduction == SUM else num_samples if given is None else given
        if weight is None:
            raise ConfigError(
                "the number of samples in this batch is unknown. Set it: add(..., weight=number of samples).",
                code="evaluation-weight-unknown",
            )
        for name, value in values.items():
            kind, taken = take(name, value, reduction, (num_samples, given))
            self._added.append((self._place, name, kind, taken, weight))
            for tensor in filter(is_on_device, (taken, weight)):
                self._arrivals.note(tensor)

    def update(self, batch: EvaluationBatch | None, metric: Any, args: tuple[Any, ...]) -> None:
        """Schedules an update of a metric with the running batch."""
        if batch not in self._guard.evaluations:
            raise UsageError(
                f"update({type(metric).__name__}) outside of the loop over shards: {LINES}", code="evaluation-outside-shards"
            )
        if self._place is not None:
            self._updates.add(self._place, metric, args)

    def running(self, batch: EvaluationBatch, num_samples: int | None) -> tuple[int, int | None]:
        """Returns the number of a batch and its number of samples. Inside its shards, they are of
        the batch whose samples this process runs, which may be another one of the round.
        ``num_samples``: the number of samples of ``batch``, according to the loader."""
        if batch not in self._guard.evaluations:
            return batch.place, num_samples
        # Another rank's samples, in a round with fewer batches than ranks: their results are
        # ignored.
        if self._place is None:
            return batch.place, None
        return self._place[0], self._round.num_samples

    def share(self, batch: EvaluationBatch, value: Any) -> None:
        """Note a result of the batch that this process is in, for ``shared``."""
        if not self._shares:
            raise UsageError(
                "batch.share() in an evaluation that does not share: write team.evaluate(model, loader, share=True), so that "
                "as many batches as there are processes are computed before results are exchanged"
            )
        if batch not in self._guard.evaluations:
            raise UsageError(f"batch.share() outside of the loop over shards: {LINES}")
        if self._place is not None:
            self._round.mine.append((self._place, keep(value)))

    def shared(self, batch: EvaluationBatch, turn: int) -> list[Any]:
        """Returns the values that were shared in a pass over a batch, on every rank. The first call
        after that pass is a collective, for all batches of the round together. ``turn``: the number
        of earlier passes over the batch."""
        self._guard.check_outside("batch.shared()")
        now = self._round
        if self.current is not batch or turn < 0 or not self._shares:
            raise UsageError(
                f"batch.shared() of batch {batch.place} of an evaluation was called before a loop over its batch.shards, or "
                "after the next batch. Call batch.share() in that loop and batch.shared() right after it, in "
                "team.evaluate(model, loader, share=True).",
                code="shared-at-wrong-place",
            )
        if now.num_gathered < now.num_requested:
            mine, now.mine, now.num_gathered = now.mine, [], now.num_requested
            now.shared += gather(mine, self._collectives, self._device)
        return [value for place, value in now.shared if place == (batch.place, turn)]

    def gather(self) -> dict[str, Any]:
        """Returns the means and sums over all ranks, by name. Every rank must call it. Only here
        the process waits for values on a GPU, once."""
        self._guard.check_outside("the end of the block")
        added = [record for record in self._added if record[0] in self._requested]
        self._arrivals.wait()
        # One copy for all batches: a copy for each value would make the process wait for each.
        numbers = iter(read([item for *_, value, weight in added for item in (value, weight)]))
        mine: list[tuple[Place, str, Entry]] = [
            (place, name, entry_of(kind, next(numbers), checked(float(next(numbers)), "batch.add")))
            for place, name, kind, *_ in added
        ]
        everyone = itertools.chain.from_iterable(self._collectives.all_gather_plain(mine))
        in_order = sorted(everyone, key=lambda record: record[0])
        totals = combine(((name, entry) for _, name, entry in in_order))
        self._updates.replay(self._requested, self._collectives, self._device, lambda: self._source.reseed_replay(self._key))
        return {name: total.result for name, total in totals.items()}


class EvaluationBatch(GlobalBatch):
    """One batch of an evaluation's loader, the same on every rank. One rank has its samples."""

    __slots__ = ("_num_passes", "_num_samples", "_pass", "place")

    def __init__(self, over: EvaluationPass, number: int, num_samples: int | None) -> None:
        self._pass = over
        self._num_samples = num_samples
        self._num_passes = 0
        self.place = number
        """The number of the batch in its loader, also inside ``batch.shards``."""

    @property
    def number(self) -> int:
        """The number of the batch in its loader, from 0: the same on every rank. Inside
        ``batch.shards`` it is the number of the batch with the samples, which may be another one of
        the same round."""
        return self.running[0]

    @property
    def num_samples(self) -> int:
        """The number of samples in the batch, the same on every rank. Inside ``batch.shards`` it
        counts the samples there, as for ``number``.

        Raises:
            UsageError: the loader's batches are ready-made, so only the rank that owns one can
                count it.
        """
        num_samples = self.running[1]
        if num_samples is None:
            raise UsageError(
                "batch.num_samples of a ready-made batch: only the process that owns it can count its samples. Add the "
                "number inside batch.shards: batch.add(count=len(labels), weight=1).",
                code="num-samples-unknown",
            )
        return num_samples

    @property
    def shards(self) -> Iterator[Any]:
        """An iterator with the complete batch, on ``team.device`` of the rank that owns it; nothing
        on the others.

        Leaving the loop over it early is an error. Each loop is a pass with a separate random
        stream."""
        self._num_passes += 1
        return self._pass.run(self, self._num_passes - 1)

    def add(self, *, weight: float | Tensor | None = None, reduction: str | None = None, **values: Any) -> None:
        """Records results of the batch, inside ``batch.shards``, for their average over all
        batches: ``evaluation[name]`` after the block. Local.

        Args:
            weight: the batch's weight in the average; None: its number of samples.
            reduction: ``sum`` or ``mean``: what the values are, as for ``Batch.add``. A tensor is
                then combined elementwise.
            values: each a number or a tensor: the batch's average, or one value per sample (which
                are averaged).

        Raises:
            UsageError: outside of ``batch.shards``.
            ConfigError: there is no weight, and the number of samples cannot be determined.
        """
        self._pass.add(self, weight, values, reduction)

    def update(self, metric: Any, *args: Any) -> None:
        """Schedules ``metric.update(*args)`` for the end of the block, on every rank and in batch
        order. Local.

        So a metric object (for example of torchmetrics) is finally on every rank as if it had seen
        the whole loader. The synchronization in ``compute()`` of torchmetrics is disabled, since it
        would count every batch once per rank."""
        self._pass.update(self, metric, args)

    @property
    def running(self) -> tuple[int, int | None]:
        """``number`` and ``num_samples``, with None where the latter is unknown."""
        return self._pass.running(self, self._num_samples)

    def share(self, value: Any) -> None:
        """Shares a result of the batch with all processes, inside ``batch.shards``: ``shared()``
        returns it on each. Local.

        For results that no average replaces, such as predictions::

            with team.evaluate(model, loader, share=True) as evaluation:
                for batch in evaluation:
                    for images, labels in batch.shards:
                        batch.share((model(images), labels))
                    [(logits, labels)] = batch.shared()

        Args:
            value: tensors and plain values, or lists, tuples and dicts of them (or anything that
                can be pickled). Tensors are detached and copied.

        Raises:
            UsageError: outside of ``batch.shards``, or in an evaluation without ``share=True``.
        """
        self._pass.share(self, value)

    def shared(self) -> list[Any]:
        """Returns the values that the batch's owner has shared in the newest loop over
        ``batch.shards``, one for each call: the same on every rank. Every rank must call it, in the
        outer loop, after that loop; it blocks until all have.

        Raises:
            UsageError: inside ``batch.shards``, before it, or in an evaluation without
                ``share=True``.
        """
        return self._pass.shared(self, self._num_passes - 1)

    def __getitem__(self, name: str) -> NoReturn:
        if isinstance(name, str):
            raise UsageError(
                f"batch[{name!r}] is not available in an evaluation: values are averaged over the whole loader. Read "
                f"evaluation[{name!r}] after the `with` block. If it is part of the data, read it inside batch.shards.",
                code="value-of-evaluation-batch",
            )
        self.refuse(f"batch[{name!r}]")

    @override
    def refuse(self, use: str) -> NoReturn:
        raise UsageError(
            f"{use}: an evaluation yields each batch of its loader on every process, and the samples on the one that owns it. "
            f"{LINES}",
            code="batch-used-as-tensors",
        )

    def refuse_inside(self, call: str) -> NoReturn:
        """Raises the error for a call inside the loop over this batch's shards.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{call} inside batch.shards of batch {self.place} of an evaluation, where only the process that owns the batch "
            "runs. Call it in the outer loop or after the `with` block. (If it is there already, an earlier loop over "
            "batch.shards was left early: use `continue` instead of `break`.)",
            code="call-inside-evaluation-shards",
        )

    def __repr__(self) -> str:
        return f"EvaluationBatch(batch {self.place} of an evaluation)"
