"""``Sync``: the interface of all strategies for synchronizing gradients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from lockstep._plan.shards import MicroStep, StepPlan
from lockstep._sync.buffers import ShardBuffers


@dataclass(slots=True)
class Outcome:
    """What the ranks have exchanged at the end of a phase; the same on every rank. (Treated as
    immutable.)"""

    totals: Sequence[float | None]
    """For each backward call of the phase, the divisor of its sum over all shards; None: not
    divided."""
    new_keys: Sequence[Hashable] = ()
    """The results of ``Sync.new_keys`` of all ranks, in order, without duplicates."""
    beside: int = 0
    """Loops over other batches that were part of the phase on any rank: see ``Phases``."""


class ShardSync(Protocol):
    """The part of a Sync that micro-steps run on."""

    def begin_shard(self, micro: MicroStep) -> None:
        """Begin a micro-step. Local."""

    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        """Run a backward pass. Afterwards ``.grad`` of every parameter is None or incomplete. May
        communicate.

        Args:
            loss: a scalar.
            call: number of the backward call within the micro-step, from 0.
            factor: factor for its gradients; a tensor on a device should not be waited for.
            options: for ``Tensor.backward``.
        """

    def end_shard(self) -> None:
        """End the micro-step: changes of buffers are recorded and undone. Local."""


class Sync(ShardSync, Protocol):
    """A strategy: the only place where strategies differ. Created once per run.

    In each phase every rank calls ``begin_phase``; for each of its micro-steps, if any,
    ``begin_shard``, ``backward`` as often as the script does, and ``end_shard``; then ``new_keys``
    and ``gather``, by which the ledger settles weights and values, and ``end_phase``, which
    synchronizes gradients and buffers. Or ``drop`` at any point, if all ranks end or leave the
    step.
    """

    forward_is_collective: bool
    """Whether a forward pass is a collective, so that all ranks must run the model equally often,
    in evaluations too."""
    is_plain: bool
    """Whether a step is that of a plain single-device script, with the same ``.grad`` inside
    ``batch.shards``. Then nothing is combined: of what a phase calls, it gets ``backward``
    alone."""
    waited_s: float
    """For how many seconds of the newest backward pass this rank waited in it for the others, as
    far as that is known."""
    waited_in_forward_s: float
    """The same of the forward pass before it."""
    times_forward: bool
    """Whether that is known: 0 where nobody waits in a forward pass."""
    buffers: ShardBuffers
    """Combines the shards' changes of buffers."""
    replaced: dict[nn.Parameter, nn.Parameter]
    """The parameters that ``attach``, or moving the model to its device, has replaced, with their
    replacements."""

    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """Add a model, which must be on its device and equal in structure on all ranks.

        Every rank must call it, in the same order. Parameters and buffers become those of rank 0.

        Returns:
            The callable for forward passes with gradients.
        """

    def shard(self, model: nn.Module) -> None:
        """Shard a model that is not trained, an average, as ``attach`` does one that is. It must be
        the same on all ranks, and every rank must call it. Only where ``forward_is_collective``."""
        return

    def begin_phase(self, plan: StepPlan, phase: int) -> None:
        """Begin a phase of a step. Every parameter's ``.grad`` must be None. Local."""

    def new_keys(self) -> Sequence[Hashable]:
        """What this rank must tell the others about the phase because earlier phases of this number
        did not have it."""

    def gather(self, row: list[float]) -> list[list[float]] | None:
        """Gather a row of numbers from each rank, in one message with the gradients of the phase.
        Every rank must call it, after its shards have run and before ``end_phase``.

        Args:
            row: of equal length on every rank.

        Returns:
            The rows by rank; None, on every rank, if gradients are sent separately.
        """

    def end_phase(self, outcome: Outcome) -> None:
        """Synchronize gradients and buffers. Every rank must call it; it blocks until all have.

        Afterwards ``.grad`` is, summed over the backward calls, ``sum(factor * gradient) / total``
        over all shards of all ranks: the same on every rank, and None if no shard used the
        parameter. Buffers are the same on every rank too."""

    def drop(self) -> None:
        """Discard the sums of an unfinished phase. Local."""

    def close(self) -> None:
        """Release resources at the end of the run. Local."""
