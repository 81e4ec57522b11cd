"""What is measured goes to trackers: TensorBoard, Weights & Biases, Trackio, or others of their shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch.optim import Optimizer

from lockstep.listener import Listener
from lockstep.measure.board import Board
from lockstep.measure.shaped import About, Shaped
from lockstep.trackers import OFF

TRAINING, EVALUATION = "training", "evaluation"


class Outlet(Protocol):
    """One tracker. None of its methods raises."""

    def open(self) -> None:
        """The first step is about to begin. May be called again."""

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Averages of a step, or results of an evaluation after it. Steps come in order."""

    def close(self, *, failed: bool) -> None:
        """The run is over. May be called again."""


class Trackers(Listener):
    """Those of one process; on ranks other than 0 there are none.

    Values of a step come some steps later, and an evaluation's at once: they wait here for those of the steps before, because
    trackers want steps in order.

    Args:
        outlets: the trackers.
        is_behind: whether values of steps that are over have not come yet.
    """

    def __init__(self, outlets: Sequence[Outlet] = (), is_behind: Callable[[], bool] = lambda: False) -> None:
        self._outlets = outlets
        self._is_behind = is_behind
        self._waiting: list[tuple[int, Mapping[str, float]]] = []
        self.learned: dict[str, Any] = {}
        """What the script trains with: ``batch_size``, and of each optimizer the numbers that it began with."""

    def prepared(self, item: Any) -> None:
        """See Listener."""
        if isinstance(item, Optimizer):
            numbers = {name: value for name, value in item.defaults.items() if isinstance(value, (bool, int, float, str))}
            self.learned.setdefault("optimizers", []).append({"type": type(item).__name__, **numbers})

    def prepared_loader(self, batches: Iterable[Any]) -> None:
        """See Listener."""
        if isinstance(size := getattr(batches, "batch_size", None), int):
            self.learned.setdefault("batch_size", size)

    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        """See Listener."""
        if num_epochs is not None:
            self.learned.setdefault("epochs", num_epochs)
        for outlet in self._outlets:
            outlet.open()

    def trained(self, step: int, values: Mapping[str, float]) -> None:
        """Averages of a step."""
        self._tell_up_to(step)
        self._tell(TRAINING, step, values)

    def tested(self, step: int, values: Mapping[str, float]) -> None:
        """Results of an evaluation after that step."""
        self._waiting.append((step, values))
        if not self._is_behind():
            self.flush()

    def flush(self) -> None:
        """See Listener: all values have come."""
        self._tell_up_to(None)

    def close(self, *, failed: bool) -> None:
        """The run is over."""
        self.flush()
        for outlet in self._outlets:
            outlet.close(failed=failed)

    def _tell_up_to(self, step: int | None) -> None:
        """Of evaluations before a step; None: of all."""
        while self._waiting and (step is None or self._waiting[0][0] < step):
            self._tell(EVALUATION, *self._waiting.pop(0))

    def _tell(self, group: str, step: int, values: Mapping[str, float]) -> None:
        for outlet in self._outlets:
            outlet.write(group, step, values)


def outlets_for(
    track: Sequence[str] | None, objects: Mapping[str, Any], about: About, resumed_from: int | None
) -> list[Outlet]:
    """The outlets for ``RunConfig.track``: by default TensorBoard, where it is installed.

    Args:
        track: the names.
        objects: those that the script has given, by name.
        about: the run.
        resumed_from: the step from which an interrupted run resumes; None: it is new.
    """
    if track is None:
        return [Board(about.run_dir, resumed_from)]
    names = [name for name in track if name != OFF]
    return [
        Board(about.run_dir, resumed_from, must=True) if name == "tensorboard" else Shaped(name, about, objects.get(name))
        for name in names
    ]
