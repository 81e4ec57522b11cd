"""The bookkeeping of shards that every replicated strategy shares: what is added up before anything is sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter

from lockstep.errors import UsageError
from lockstep.plan.shards import MicroStep
from lockstep.sync.buffers import ShardBuffers
from lockstep.sync.gradients import Gradients, ShardSums, check_total, divide, install, put_back, set_aside


class ShardedSync(ABC):
    """Adds up a process's shards; a subclass says how the sums of several processes meet."""

    forward_is_collective = False
    """See Sync."""

    def __init__(self, num_shards: int) -> None:
        self.replaced: dict[Parameter, Parameter] = {}
        self._num_shards = num_shards
        self._parameters: list[Parameter] = []
        self._buffers = ShardBuffers()
        self._sums = ShardSums()
        self._totals: dict[int, float] = {}
        self._carried: Gradients = {}
        self._turn: MicroStep | None = None
        self._calls = 0
        self._shard_fraction = 0.0
        """The weight by sample count of the shard at hand, over its turns so far."""
        self._weighted: dict[int, bool] = {}
        """Whether the script gives weights, for each backward call of its body."""

    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """See Sync."""
        known = set(self._parameters)
        self._parameters.extend(parameter for parameter in model.parameters() if parameter not in known)
        forward = self._replicate(model)
        self._buffers.attach(model)
        return forward

    def begin(self, turn: MicroStep) -> None:
        """See Sync."""
        self._turn = turn
        self._calls = 0
        if turn.index == 0:
            self._buffers.begin_step()
        elif turn.begins_shard:
            self._buffers.restart_shard()
        self._shard_fraction = turn.fraction + (0.0 if turn.begins_shard else self._shard_fraction)

    def absent(self, num_active_ranks: int) -> None:
        """See Sync."""
        self._turn = None

    def backward(self, loss: Tensor, weight: float | None, **options: Any) -> None:
        """See Sync."""
        turn = self._turn
        assert turn is not None
        call, self._calls = self._calls, self._calls + 1
        self._check_kind(call, weighted=weight is not None)
        share = turn.fraction if weight is None else weight
        self._totals[call] = self._totals.get(call, 0.0) + share
        carried = set_aside(self._parameters)
        if not turn.is_last:
            self._add_shard(loss, call, share, options)
            self._carried.update(carried)
            if turn.ends_shard:  # until then the shard's turns go on from each other's buffers
                self._buffers.note(self._shard_fraction, is_lowest_shard=turn.shard == 0)
            return
        # By sample count the shares sum to one, so nothing needs to be gathered or divided.
        total = self._totals.pop(call) if weight is not None else None
        changed = self._buffers.noted()
        agree = self._start_agreeing(call, total, changed)
        sums = self._backward_and_reduce(loss, call, share, options)
        total, changed = agree()
        if total is not None:
            check_total(total, turn.step)
            divide((p.grad for p in self._parameters if p.grad is not None), total)
            divide(sums.values(), total)
        install(sums)
        put_back(self._carried)
        put_back(carried)
        self._carried = {}
        if any(changed):
            self._buffers.note(self._shard_fraction, is_lowest_shard=turn.shard == 0)
            self._buffers.combine(changed, self._buffer_reduction())

    def _check_kind(self, call: int, *, weighted: bool) -> None:
        if self._weighted.setdefault(call, weighted) != weighted:
            raise UsageError(
                "backward() was given a weight for some shards and none for others: token counts and sample counts cannot "
                "be added up. Give every shard a weight, or none."
            )

    def end_step(self) -> None:
        """See Sync."""
        self._buffers.rewind()
        self._totals.clear()
        self._sums.clear()
        self._turn = None

    def drop(self) -> None:
        """See Sync."""
        put_back(self._carried)
        self._carried = {}
        self.end_step()

    def _add_shard(self, loss: Tensor, call: int, share: float, options: dict[str, Any]) -> None:
        """The backward pass of a shard that is not this process's last one: its gradients go into the sum of their call."""
        loss.backward(**options)  # type: ignore[no-untyped-call]
        self._sums.add(call, self._parameters, share)

    @abstractmethod
    def close(self) -> None:
        """See Sync."""

    @abstractmethod
    def _replicate(self, model: nn.Module) -> Callable[..., Any]:
        """Make the model that of rank 0 on every rank; what to call for its forward pass."""

    @abstractmethod
    def _start_agreeing(
        self, call: int, total: float | None, changed: list[bool]
    ) -> Callable[[], tuple[float | None, list[bool]]]:
        """Begin to agree with the other ranks on the sum of weights and on which buffers have changed.

        It goes on during the backward pass; calling what is returned waits for it.
        """

    @abstractmethod
    def _backward_and_reduce(self, loss: Tensor, call: int, share: float, options: dict[str, Any]) -> Gradients:
        """The last shard's backward pass. The weighted sums over all shards of all ranks, not yet in the parameters' dtype.

        Those of some parameters may be in ``.grad`` instead.
        """

    @abstractmethod
    def _buffer_reduction(self) -> Callable[[Tensor], None] | None:
        """How a flat tensor is summed over the ranks that take part in this step; None: there is no other."""
