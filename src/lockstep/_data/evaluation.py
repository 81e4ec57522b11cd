"""Evaluation on all processes, with the result of a single one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lockstep._base.errors import UsageError
from lockstep._data.evaluation_pass import EvaluationBatch, EvaluationPass
from lockstep._data.streams import preserve_rng


class Evaluation:
    """One evaluation: a loop over the batches of a loader, and then the averages of what was added
    for them.

    ::

        with team.evaluate(model, test_loader) as evaluation:
            for images, labels in evaluation.shards:
                logits = model(images)
                evaluation.add(loss=criterion(logits, labels), accuracy=logits.argmax(1) == labels)
        team.print(evaluation["loss"], evaluation["accuracy"])

    ``evaluation.shards`` yields complete batches, each on one rank. To do something between two
    batches (stop early, leave some out, count them), loop over the evaluation and, inside, over
    ``batch.shards``::

            for batch in evaluation:
                for images, labels in batch.shards:
                    batch.add(loss=criterion(model(images), labels))

    This outer loop runs once for each batch of the loader, on every rank. It may be left early, and
    leave batches out, on a condition that is the same on every rank. ``batch.shards`` yields the
    complete batch on the rank that owns it, and nothing on the others. (With ``strategy="fsdp"``,
    W batches run inside ``batch.shards`` at the same time, one on each rank.)

    Inside the block the models are in evaluation mode and gradients are disabled; afterwards both
    are as before, and so are the random streams. The end of the block is a collective, which every
    rank must reach; it waits for the GPU."""

    def __init__(self, models: Sequence[nn.Module], over: EvaluationPass, done: Callable[[dict[str, Any]], None]) -> None:
        self._models = models
        self._pass = over
        self._done = done
        self._results: dict[str, Any] | None = None
        self._stack: contextlib.ExitStack | None = None

    def __enter__(self) -> Evaluation:
        if self._stack is not None:
            raise UsageError(
                "an evaluation can be entered once. Call team.evaluate() again for the next one.",
                code="evaluation-entered-twice",
            )
        self._pass.begin()
        stack = contextlib.ExitStack()
        stack.enter_context(preserve_rng())
        for model in self._models:
            stack.callback(_set_modes, [(module, module.training) for module in model.modules()])
            model.eval()
        stack.enter_context(torch.no_grad())
        self._stack = stack
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._stack is not None
        with self._stack, self._pass.ending():
            if kind is None:
                self._results = self._pass.gather()
        if self._results is not None:
            self._done(self._results)

    def __iter__(self) -> Iterator[EvaluationBatch]:
        return self._pass.batches()

    @property
    def shards(self) -> Iterator[Any]:
        """The ``batch.shards`` of all batches, one after another: the batches of this rank, each on
        ``team.device``.

        The loop runs a different number of times on each rank, so collectives inside are refused
        (with ``fsdp``, calls of ``torch.distributed`` are not noticed). Leaving it early is an
        error."""
        return itertools.chain.from_iterable(batch.shards for batch in self)

    def add(self, *, weight: float | Tensor | None = None, reduction: str | None = None, **values: Any) -> None:
        """Calls ``EvaluationBatch.add`` of the running batch."""
        self._pass.add(self._pass.current, weight, values, reduction)

    def update(self, metric: Any, *args: Any) -> None:
        """Calls ``EvaluationBatch.update`` of the running batch."""
        self._pass.update(self._pass.current, metric, args)

    def __getitem__(self, name: str) -> Any:
        """Returns the weighted average of a value over the batches, the same on every rank."""
        if name not in self.results:
            available = ", ".join(self.results) or "nothing"
            raise KeyError(f"{name!r} was not added in this evaluation; available: {available}")
        return self.results[name]

    @property
    def results(self) -> Mapping[str, Any]:
        """All averages, by name."""
        if self._results is None:
            raise UsageError("results are available after the `with` block", code="results-before-end")
        return self._results


def _set_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    # Each submodule has a mode: a frozen part may be in evaluation mode while the rest is trained.
    root, mode = modes[0]
    root.train(mode)
    for module, mode in modes[1:]:
        module.training = mode
