"""What every way for gradients to meet can do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from lockstep.plan.shards import MicroStep, StepPlan


@dataclass(slots=True)
class Outcome:
    """What the ranks have told each other at the end of a phase: the same on all of them. (Nothing changes it.)"""

    totals: Sequence[float | None]
    """For each backward call of the phase, what its sum over all shards is to be divided by; None: by nothing."""
    unforeseen: Sequence[Hashable] = ()
    """What ``Sync.unforeseen`` has given on all ranks, each once, in order."""


class Sync(Protocol):
    """The one place where strategies differ. Made once, by the team.

    In each phase of a step every rank calls ``begin_phase``; for each of its micro-steps, if it has any, ``begin_shard``,
    ``backward`` as often as the script does, and ``end_shard``; and ``end_phase``, in which gradients and buffers meet. Or
    ``drop`` at any point, where all ranks end or leave the step.
    """

    forward_is_collective: bool
    """Whether the ranks meet in every forward pass, so that all must run the model equally often, in evaluations too."""
    is_plain: bool
    """Whether a step is that of a plain script: then ``.grad`` inside ``batch.shards`` is what it is there."""
    replaced: dict[nn.Parameter, nn.Parameter]
    """Parameters that ``attach`` has put others in the place of."""

    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """Make ``model`` take part: it is on its device, and equal in structure on all ranks.

        Every rank must call it, in the same order. Parameters and buffers become those of rank 0.
        Returns what to call for a forward pass with gradients.
        """

    def begin_phase(self, plan: StepPlan, phase: int) -> None:
        """A phase of a step begins. Every parameter's ``.grad`` is None. Local."""

    def begin_shard(self, micro: MicroStep) -> None:
        """A micro-step begins. Local."""

    def backward(self, loss: Tensor, call: int, factor: float, options: dict[str, Any]) -> None:
        """Run a backward pass. ``.grad`` of every parameter is None afterwards, or not yet what it will be.

        Args:
            loss: a scalar.
            call: which of this micro-step's backward passes it is, from 0.
            factor: what its gradients are multiplied by.
            options: for ``Tensor.backward``.
        """

    def end_shard(self) -> None:
        """The micro-step is over: changes of buffers are noted and undone. Local."""

    def unforeseen(self) -> Sequence[Hashable]:
        """What this rank must tell the others of the phase, since it was not so in the phases of this number before."""

    def gather(self, row: list[float], num_calls: int) -> list[list[float]] | None:
        """Gather a row of numbers from each rank, together with the gradients of the phase. Every rank must call it, when its
        shards have run and before ``end_phase``.

        Args:
            row: of equal length on every rank.
            num_calls: the backward calls that are foreseen for the phase: the same on every rank.

        Returns:
            The rows by rank. None, on every rank: gradients go by themselves.
        """

    def end_phase(self, outcome: Outcome) -> None:
        """Bring together what the shards of all ranks have given. Every rank must call it.

        Afterwards ``.grad`` is, summed over the backward calls, ``sum(factor * gradient) / total`` over all shards of all
        ranks: the same on every rank; None if no shard used the parameter. Buffers are the same on every rank too.
        """

    def drop(self) -> None:
        """Forget what an unfinished phase has added up so far. Local."""

    def close(self) -> None:
        """The run is over: let go of process groups. Local."""
