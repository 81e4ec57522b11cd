"""Repeating a shard as a dry run: the body of the script's loop over ``batch.shards`` runs for it,
without any effect on the run.

An instrument gives ``Phases.micro_batches`` a generator that yields the micro-batches of the shard
in the context ``DryRuns.of_shard``, before or after the micro-batches that count. They run in a
``Phase`` that takes the place of the running one, so nothing of them is recorded or exchanged. When
they have run, gradients, buffers, random streams and what the shard carries from batch to batch are
as before. lockstep cannot undo what the script itself keeps: see ``Team.in_audit``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lockstep._base.errors import UsageError
from lockstep._data.streams import preserve_rng
from lockstep._listener import Listener, Listeners
from lockstep._loop.phase import Phase
from lockstep._loop.phases import Phases
from lockstep._prepare.per_shard import PerShard
from lockstep._state.recovery.run_state import RunState
from lockstep._sync.gradients import detach_grads, put_back
from lockstep._sync.protocol import Strategy
from lockstep._sync.single import PlainSums


class DryRuns:
    """Dry runs of shards, on one rank.

    Args:
        phases: of the run.
        strategy: of the run. If its backward pass communicates, every rank must make a dry run.
        state: of the run.
    """

    def __init__(self, phases: Phases, strategy: Strategy, state: RunState) -> None:
        self._phases = phases
        self._strategy = strategy
        self._state = state

    def carried(self, shard: int) -> list[Any]:
        """Returns what a shard of this rank carries from batch to batch: its value of each
        ``team.per_shard``."""
        return [item.of(shard) for item in self._per_shard()]

    def _per_shard(self) -> list[PerShard]:
        targets = (adapter.target for adapter in self._state.registered.values())
        return [target for target in targets if isinstance(target, PerShard)]

    @contextlib.contextmanager
    def of_shard(self, shard: int, carried: Sequence[Any], listener: Listener) -> Iterator[None]:
        """Returns a context in which micro-batches run without effect. It may also be left while
        one runs.

        Args:
            shard: whose micro-batches they are.
            carried: what it carries, as ``carried`` returns it. It is changed.
            listener: the only one to be notified; of ``abandon_step`` if the context is left early.

        Raises:
            UsageError: the script has changed weights, or an option of an optimizer.
        """
        phases, trained, guards = self._phases, self._phases.trained, self._phases.guards
        before = guards.weights.contents()
        try:
            # Undone in the reverse order, also if the script leaves the shard by an error.
            with contextlib.ExitStack() as undo:
                undo.enter_context(preserve_rng())
                undo.callback(
                    _remember_buffers(trained.models) if self._strategy.is_plain else self._strategy.buffers.rewind
                )
                undo.callback(put_back, detach_grads(trained.parameters))
                undo.callback(detach_grads, trained.parameters)
                items = self._per_shard()
                own = [item.swap(shard, value) for item, value in zip(items, carried, strict=True)]
                undo.callback(lambda: [item.swap(shard, value) for item, value in zip(items, own, strict=True)])
                phase = phases.phase
                assert phase is not None
                undo.callback(setattr, phases, "phase", phase)
                phases.phase = Phase(
                    phases.parts,
                    phase.step,
                    phase.number,
                    phase.batch,
                    _DiscardingSums(self._strategy, trained.parameters),
                    Listeners([listener]).on,
                    lambda mark: None,
                    is_dry_run=True,
                )
                yield
        except BaseException:
            listener.abandon_step()
            raise
        if (what := guards.weights.first_change(before)) is not None:
            raise UsageError(
                f"{what} was changed inside batch.shards in step {phases.step}, in which an audit repeats a shard, so it would "
                "be changed twice. Change it once a step, after the loop over batch.shards, or leave --audit out. "
                "(Embedding(max_norm=...) changes its weight in the forward pass.)",
                code="changed-in-audit",
            )


class _DiscardingSums(PlainSums):
    """Sums that discard the gradients of backward passes.

    Args:
        strategy: of the run.
        parameters: of all prepared models.
    """

    def __init__(self, strategy: Strategy, parameters: Iterable[nn.Parameter]) -> None:
        self._strategy = strategy
        self._parameters = parameters

    @override
    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        with self._strategy.buffers.restored_after():
            loss.backward(**options)  # type: ignore[no-untyped-call]
        if not self._strategy.is_plain:  # else the script may use ``.grad`` inside ``batch.shards``
            detach_grads(self._parameters)


def _remember_buffers(models: Iterable[nn.Module]) -> Callable[[], None]:
    """Returns a function that restores the buffers to their present values, including buffers that
    are None."""
    before: list[tuple[dict[str, Any], str, Tensor | None, Tensor | None]] = [
        (module._buffers, name, buffer, None if buffer is None else buffer.detach().clone())
        for model in models
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]

    def restore() -> None:
        with torch.no_grad():
            for buffers, name, buffer, value in before:
                buffers[name] = buffer
                if buffer is not None and value is not None:
                    buffer.data.copy_(value)

    return restore
