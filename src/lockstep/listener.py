"""What is told of the life of a run: each pass over a loader, its steps, their phases, and the shards of each phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lockstep.plan.shards import MicroStep


class Listener:
    """Told by the loop what happens, in this order. A capability that wants to know of a step is one more listener.

    ``begin_pass``, then for each step ``begin_step``; for each of its phases ``begin_phase``, each shard's micro-steps
    (``begin_shard``, ``received``, ``before_backward``, ``after_backward``, ``end_shard``) and ``end_phase``; ``end_step``
    and ``tick``, or ``drop``; in the end ``end_pass``. ``flush`` comes between passes.

    Every rank is told of the same passes, steps and phases. Only ``tick`` and ``flush`` may communicate.
    """

    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        """A pass begins, in this epoch of so many (None: unknown): of so many steps (None: unknown), of which ``done`` were
        taken before the run was interrupted."""

    def begin_step(self, step: int) -> None:
        """A step begins."""

    def begin_phase(self, phase: int) -> None:
        """A phase begins: the first of its step is 0."""

    def begin_shard(self, micro: MicroStep) -> None:
        """A micro-step of this process begins."""

    def received(self, micro: MicroStep, data: Any) -> None:
        """The script is about to get these samples; for two loaders side by side, from each."""

    def before_backward(self, loss: Tensor, weight: float | None) -> None:
        """A backward pass is about to run, with the weight that the script gave."""

    def after_backward(self) -> None:
        """It has run."""

    def end_shard(self) -> None:
        """The micro-step is over."""

    def end_phase(self, phase: int) -> None:
        """The phase is over: gradients and buffers have met, and are the same on every rank."""

    def before_optimizer(self, optimizer: Optimizer) -> None:
        """In a step, outside of its phases, an optimizer of prepared parameters is about to act: a prepared one or not."""

    def end_step(self, step: int, num_samples: int) -> None:
        """A step has been taken, on a global batch of so many samples. Local."""

    def tick(self, step: int) -> None:
        """The step has ended on all ranks, and all of them come here."""

    def drop(self) -> None:
        """The step at hand is discarded. Local."""

    def end_pass(self, step: int, *, exhausted: bool) -> None:
        """The pass is over after this step of the run: at its end, or before. Local."""

    def flush(self) -> None:
        """All passes so far are over, on all ranks: bring together what is under way. Every rank comes here."""


class Listeners(Listener):
    """Tells several listeners, in this order. What none of them wants to know costs next to nothing."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        for name, plain in vars(Listener).items():
            told = [getattr(one, name) for one in listeners if getattr(type(one), name) is not plain]
            if not name.startswith("_") and told:
                setattr(self, name, told[0] if len(told) == 1 else _one_after_another(told))


def _one_after_another(told: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def tell(*args: Any, **kwargs: Any) -> None:
        for one in told:
            one(*args, **kwargs)

    return tell
