"""Sends measurements to trackers: TensorBoard, Weights & Biases, Trackio, or others with a similar interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch.optim import Optimizer
from typing_extensions import override

from lockstep.base.trackers import OFF
from lockstep.journal.measure.tensorboard import TensorBoard
from lockstep.journal.measure.wandb_like import RunInfo, WandbLike
from lockstep.listener import Listener

TRAINING, EVALUATION = "training", "evaluation"


class Tracker(Protocol):
    """A tracker. Its methods do not raise."""

    def open(self) -> None:
        """Called before the first step, perhaps several times."""

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Write the averages of a step, or the results of an evaluation after it. Steps come in order."""

    def close(self, *, failed: bool) -> None:
        """The run has ended. May be called again."""


class Trackers(Listener):
    """The trackers of one process; there are none on ranks other than 0.

    The values of a step arrive some steps later, those of an evaluation at once. The latter wait here for the steps before,
    since trackers expect steps in order.

    Args:
        hyperparameters: where those of the script are collected: ``batch_size``, ``epochs``, and the initial settings of each
            optimizer.
    """

    def __init__(self, trackers: Sequence[Tracker] = (), hyperparameters: dict[str, Any] | None = None) -> None:
        self._trackers = trackers
        self._waiting: list[tuple[int, Mapping[str, float]]] = []
        self._hyperparameters = {} if hyperparameters is None else hyperparameters

    @override
    def prepared(self, item: Any) -> None:
        if isinstance(item, Optimizer):
            numbers = {name: value for name, value in item.defaults.items() if isinstance(value, (bool, int, float, str))}
            self._hyperparameters.setdefault("optimizers", []).append({"type": type(item).__name__, **numbers})

    @override
    def prepared_loader(self, batches: Iterable[Any]) -> None:
        if isinstance(size := getattr(batches, "batch_size", None), int):
            self._hyperparameters.setdefault("batch_size", size)

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        if num_epochs is not None:
            self._hyperparameters.setdefault("epochs", num_epochs)
        for tracker in self._trackers:
            tracker.open()

    def write_step(self, step: int, values: Mapping[str, float]) -> None:
        """Write the averages of a step."""
        self._write_up_to(step)
        self._write(TRAINING, step, values)

    def write_evaluation(self, step: int, values: Mapping[str, float], *, waits: bool = False) -> None:
        """Write the results of an evaluation after this step; if it ``waits``, values of past steps have not arrived yet."""
        self._waiting.append((step, values))
        if not waits:
            self.flush()

    @override
    def flush(self) -> None:
        """All values have arrived."""
        self._write_up_to(None)

    def close(self, *, failed: bool) -> None:
        """The run has ended."""
        self.flush()
        for tracker in self._trackers:
            tracker.close(failed=failed)

    def _write_up_to(self, step: int | None) -> None:
        """Write the evaluations before a step; None: all."""
        while self._waiting and (step is None or self._waiting[0][0] < step):
            self._write(EVALUATION, *self._waiting.pop(0))

    def _write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            tracker.write(group, step, values)


def trackers_for(
    track: Sequence[str] | None, objects: Mapping[str, Any], about: RunInfo, resumed_from: int | None
) -> list[Tracker]:
    """The trackers for ``RunConfig.track``: by default TensorBoard, if it is installed.

    Args:
        objects: given by the script, by name.
        resumed_from: the step at which an interrupted run resumes; None: it is new.
    """
    if track is None:
        return [TensorBoard(about.run_dir, resumed_from)]
    names = [name for name in track if name != OFF]
    return [
        TensorBoard(about.run_dir, resumed_from, must=True)
        if name == "tensorboard"
        else WandbLike(name, about, objects.get(name))
        for name in names
    ]
