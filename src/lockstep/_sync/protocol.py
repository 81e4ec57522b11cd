"""``Strategy``: the interface of all strategies for synchronizing gradients, and ``PhaseSums``, the
sums of one in a phase.

A strategy lives for the run, and opens a ``PhaseSums`` for each phase, which ends by ``finish`` or
``abandon``. Who calls what in a phase, on a rank with two shards::

    Strategy.open                         local
    begin_shard, backward, end_shard      for each micro-batch; backward may exchange
    news                                  after the last shard; starts what earlier phases had
    gather                                the rows of all ranks (``loop.exchange``): all wait
    finish                                starts the rest: all wait

A row is what a rank has recorded in the phase: weights and values. ``news`` comes before the
exchange of rows and ``finish`` after it, because a rank learns only from the others' rows which
gradients and buffers, that no earlier phase had, some rank has in this one. In a phase like the one
before it, that is none, and nothing but the rows, the gradients and the changes of buffers is
sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from lockstep._plan.shards import MicroBatch, StepPlan
from lockstep._sync.buffers import ShardBuffers
from lockstep._sync.news import News


class PhaseSums(Protocol):
    """The gradients and changes of buffers of a phase: added up over this rank's shards, and in the
    end over all ranks. Every rank has one for each phase, also if it has no samples."""

    def begin_shard(self, micro: MicroBatch) -> None:
        """Begins a micro-batch. Local."""

    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        """Runs a backward pass. Afterwards ``.grad`` of every parameter is None or incomplete. May
        communicate.

        Args:
            loss: a scalar.
            call: index of the backward call within the micro-batch, from 0.
            factor: factor for its gradients; a tensor on a device should not be waited for.
            options: for ``Tensor.backward``.
        """

    def end_shard(self) -> None:
        """Ends the micro-batch. If it is the last of its shard, records the shard's changes of
        buffers and undoes them. Local."""

    def news(self) -> News:
        """Returns what the other ranks must learn about the phase, after the last shard. May
        communicate: it starts the exchange of what earlier phases had."""

    def gather(self, row: list[float]) -> list[list[float]] | None:
        """Gathers the row of each rank, in one message with the gradients of the phase. Every rank
        must call it, after ``news`` and before ``finish``.

        Args:
            row: of equal length on every rank.

        Returns:
            The rows by rank; None, on every rank, if gradients are sent separately.
        """

    def finish(self, divisors: Sequence[float | None], news: News) -> None:
        """Synchronizes gradients and buffers. Every rank must call it; it blocks until all have.

        Afterwards ``.grad`` is, summed over the backward calls, ``sum(factor * gradient) /
        divisor`` over all shards of all ranks: the same on every rank, and None if no shard used
        the parameter. Buffers are the same on every rank too.

        Args:
            divisors: for each backward call, the divisor of its sum over all shards; None: not
                divided. The same on every rank.
            news: of all ranks. The same on every rank.
        """

    def abandon(self) -> None:
        """Discards what was added up, at any point, and undoes changes of buffers. All ranks end or
        leave the step. Local."""


class Strategy(Protocol):
    """A strategy: the only place where strategies differ. Created once per run."""

    forward_is_collective: bool
    """Whether a forward pass is a collective, so that all ranks must run the model equally often,
    in evaluations too."""
    is_plain: bool
    """Whether a step is the step of a plain single-device script, with the same ``.grad`` inside
    ``batch.shards``. Then nothing is combined."""
    waited_s: float
    """The seconds that this rank waited for others in the newest backward pass, as far as known."""
    waited_in_forward_s: float
    """The seconds that this rank waited for others in the forward pass before the newest backward
    pass."""
    times_forward: bool
    """Whether ``waited_in_forward_s`` is known: it is 0 if no forward pass waits for other
    ranks."""
    buffers: ShardBuffers
    """The shards' changes of buffers, and their combination."""
    replaced: dict[nn.Parameter, nn.Parameter]
    """The parameters that ``attach``, or moving the model to its device, has replaced, with their
    replacements."""

    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """Adds a model, which must be on its device and equal in structure on all ranks.

        Every rank must call it, in the same order. Parameters and buffers get the values of rank 0.

        Returns:
            The callable for forward passes with gradients.
        """

    def shard_parameters(self, model: nn.Module) -> None:
        """Distributes the parameters of a model that is not trained (an average) over the ranks, as
        ``attach`` does with a trained model under ``fsdp``. (These are shards of parameters, not of
        a batch.) The model must be the same on all ranks, and every rank must call it. Does nothing
        unless ``forward_is_collective``."""
        return

    def open(self, plan: StepPlan, phase: int) -> PhaseSums:
        """Begins a phase. Every parameter's ``.grad`` must be None. Local.

        Args:
            plan: the plan of the step.
            phase: index of the phase in the step, from 0.
        """

    def close(self) -> None:
        """Releases resources at the end of the run. Local."""
