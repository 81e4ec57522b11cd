"""What every way for gradients to meet can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from lockstep.plan.shards import MicroStep


class Sync(Protocol):
    """The one place where strategies differ. Made once, by the team.

    Within a step the calls on a rank are: ``begin`` and one or more ``backward`` for each micro-step, then
    ``end_step``, or ``drop`` at any point; or, on a rank without samples, ``absent`` alone. What gradients and buffers
    need to meet happens in ``backward`` of the last micro-step.
    """

    forward_is_collective: bool
    """Whether the ranks meet in every forward pass, so that all must run the model equally often, in evaluations too."""
    replaced: dict[nn.Parameter, nn.Parameter]
    """Parameters that ``attach`` has put others in the place of."""

    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """Make ``model`` take part: it is on its device, and equal in structure on all ranks.

        Every rank must call it, in the same order. Parameters and buffers become those of rank 0.
        Returns what to call for a forward pass with gradients.
        """

    def begin(self, turn: MicroStep) -> None:
        """A micro-step begins. Waits for nobody, but every rank calls this or ``absent`` in each step."""

    def absent(self, num_active_ranks: int) -> None:
        """A step begins in which this process has no samples, and ranks 0 to ``num_active_ranks - 1`` have."""

    def backward(self, loss: Tensor, weight: float | None, **options: Any) -> None:
        """Run the backward pass of one shard.

        After an earlier micro-step of the step, ``.grad`` of every parameter is None. After the last one it is
        ``sum(w_i * g_i) / sum(w_i)`` over all shards of all ranks (plus what it was before the step): the same on every
        rank; None if no shard used the parameter. Buffers are then the same on every rank too.

        Args:
            loss: a scalar.
            weight: the shard's weight; None: its part of the samples of the step.
            options: for ``Tensor.backward``.
        """

    def end_step(self) -> None:
        """The step is over: buffer changes made after the backward pass of a shard are undone. Local."""

    def drop(self) -> None:
        """Forget what an unfinished step has added up so far. Local."""

    def close(self) -> None:
        """The run is over: let go of process groups. Local."""
