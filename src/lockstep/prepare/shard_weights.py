"""What no shard may change: weights, whether they learn, and the options of optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lockstep.base.digest import bit_sums
from lockstep.base.errors import ModelError, UsageError
from lockstep.plan.now_and_then import NowAndThen
from lockstep.sync.buffers import version


class ShardWeights:
    """Finds changes inside ``batch.shards``. Each process runs only its own shards, so the others would not have them.

    Args:
        parameters: of all prepared models, with their names.
    """

    def __init__(
        self, parameters: dict[nn.Parameter, str], optimizers: list[Optimizer], schedules: list[LRScheduler]
    ) -> None:
        self._parameters = parameters
        self._optimizers = optimizers
        self._schedules = schedules
        self._stored: list[nn.Parameter] = []
        """The parameters whose memory has an address: not those of ``fully_shard``, say."""
        self._before: _Snapshot | None = None
        self._addresses: list[int] = []
        self._bits: list[int] | None = None
        """Checksums of what ``_stored`` held when the phase began, in a step in which they are compared."""
        self._looks = NowAndThen()

    def add_model(self, model: nn.Module) -> None:
        """Guard a model's weights."""
        self._stored += [parameter for parameter in model.parameters() if type(parameter.data) is Tensor]

    def begin_phase(self, step: int) -> None:
        """Record what no shard may change."""
        self._before = self._snapshot()
        self._addresses = self._find_addresses()
        self._bits = bit_sums(self._stored) if self._looks.take(step) else None

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(
            list(map(version, self._parameters)),
            [parameter.requires_grad for parameter in self._parameters],
            [_options(group) for optimizer in self._optimizers for group in optimizer.param_groups],
            [progress_of(schedule) for schedule in self._schedules],
        )

    def _find_addresses(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._stored]

    def end_shard(self, step: int) -> None:
        """Check after a micro-step that no weights were exchanged, as ``p.data = ...`` does, which is not counted as a change.
        (The next shard's may be at the old address again.)

        Raises:
            ModelError: some were.
        """
        addresses = self._find_addresses()
        if addresses != self._addresses:
            self._refuse("changed", self._stored, addresses, self._addresses, step)

    def check_unchanged(self, step: int) -> None:
        """Check that the shards of this rank have not changed what must be equal on all ranks.

        Raises:
            ModelError: parameters were changed, frozen or unfrozen.
            UsageError: an option of an optimizer was changed.
        """
        now, before = self._snapshot(), self._before
        assert before is not None
        if now != before:
            everything = list(self._parameters)
            self._refuse("changed", everything, now.versions, before.versions, step)
            self._refuse("frozen or unfrozen (requires_grad)", everything, now.learns, before.learns, step)
            _refuse_option(now.options, before.options, step)
        if self._bits is not None:  # writing through ``p.data`` in place leaves no other trace
            self._refuse("changed", self._stored, bit_sums(self._stored), self._bits, step)

    def _refuse(self, change: str, parameters: Sequence[nn.Parameter], now: list[Any], before: list[Any], step: int) -> None:
        for parameter, value, old_value in zip(parameters, now, before, strict=True):
            if value != old_value:
                raise ModelError(
                    f"parameter {self._parameters[parameter]!r} was {change} inside batch.shards in step {step}: each process "
                    "runs only its own shards, so the weights would differ from rank to rank, and from one number of processes "
                    "to another. Do that once a step, after the loop over batch.shards: averages such as MoCo's or an EMA "
                    "after optimizer.step(). For a loss with other weights (adversarial ones, say) pass moved copies to "
                    "torch.func.functional_call. (Embedding(max_norm=...) changes its weight in the forward pass: leave "
                    "max_norm out, and clip the rows after that loop.)"
                )

    def contents(self) -> tuple[list[int], list[Any]]:
        """Checksums of all weights, and the options of optimizers and schedules: equal if nothing of them has changed.

        This reads all weights, since changes through ``.data`` have no version; that is little beside a shard.
        """
        snapshot = self._snapshot()
        return bit_sums(list(self._parameters)), [snapshot.options, snapshot.progress]

    def first_change(self, before: tuple[list[int], list[Any]]) -> str | None:
        """The first thing that has changed since ``contents`` returned ``before``; None: nothing has."""
        sums, options = self.contents()
        for name, now, earlier in zip(self._parameters.values(), sums, before[0], strict=True):
            if now != earlier:
                return f"parameter {name!r}"
        return None if options == before[1] else "a learning rate"


@dataclass(slots=True)
class _Snapshot:
    """What no shard may change."""

    versions: list[int]
    """The number of in-place changes of each parameter."""
    learns: list[bool]
    options: list[dict[str, Any]]
    """By group of each optimizer."""
    progress: list[Any]
    """Of each schedule."""


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """The numbers among the options of a group: an optimizer of the script's own may have no "lr"."""
    return {name: value for name, value in group.items() if isinstance(value, (int, float, tuple)) or name == "lr"}


def _refuse_option(now: list[dict[str, Any]], before: list[dict[str, Any]], step: int) -> NoReturn:
    names = [name for group, old in zip(now, before, strict=False) for name in old if group.get(name) != old[name]]
    what = "a learning rate" if not names or names[0] == "lr" else f"the option {names[0]!r} of an optimizer"
    raise UsageError(
        f"schedule.step() inside batch.shards in step {step} (or {what} that was changed there by hand): it would act once a "
        "shard. Call it once a step, after the loop over batch.shards."
    )


def progress_of(schedule: LRScheduler) -> list[int]:
    """The step counts of a schedule and those inside it. (A ChainedScheduler has no count of its own.)"""
    return [getattr(item, "last_epoch", 0) for item in (schedule, *getattr(schedule, "_schedulers", ()))]
