"""Audits a run: every N steps a second rank recomputes one shard, and the gradients are compared
bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from lockstep._base.errors import DataError
from lockstep._base.stopping import AuditFailed, ignore_interrupts
from lockstep._data.batch import MicroBatchSamples, own_micro_batches
from lockstep._data.streams import remember_rng
from lockstep._events.measure.step_clock import ENDING, IN_AUDIT, LOGGING, WAITING, StepClock
from lockstep._listener import Listener, Listeners
from lockstep._loop.dry_runs import DryRuns
from lockstep._loop.phases import Phases
from lockstep._plan.shards import MicroBatch, StepPlan
from lockstep._tools.audit.choice import Choice
from lockstep._tools.audit.gradient_sums import GradientSums, digest_of
from lockstep._tools.audit.parcel import Parcel, pack, unpack
from lockstep._tools.audit.verdict import Computed, Verdict, judge
from lockstep._world.comm.collectives import Collectives

_NOTHING = -1.0
"""The number that is sent instead of a digest."""
_TAG = (1 << 30) - 1
"""The message tag, just below the tags of ``sync.exchange``."""


@dataclass(kw_only=True)
class _Case:
    """The audit of a phase."""

    choice: Choice
    position: tuple[int, int, int]
    """The step, its phase, and the shard."""
    restart_rng: Callable[[], None]
    """Restarts the random streams where they were before the phase's shards: each run of the shard
    begins there if it has no separate stream (V = 1)."""
    owner_sums: GradientSums
    """The sums of the shard on its owner."""
    repeat_sums: GradientSums
    """The sums of the same shard when this rank recomputes it."""
    parcels: list[bytes] = field(default_factory=list)
    """The shard's samples from each batch of the phase, in the order in which the script asked for
    their shards."""
    results: list[tuple[str, Computed]] | None = None
    """This rank's results with their roles, once the owner and the auditor are known to differ;
    None before that."""


class Auditor(Listener):
    """A listener that audits a run, on one rank.

    When an audited phase begins, the owner of the shard sends its samples to the auditor, which
    runs them without effect before its shards. Digests of both results are sent with the numbers
    that all ranks exchange at the end of the phase. (A separate exchange before that would wait for
    ranks whose gradients others wait for.) If they differ, the judges run the shard as well, and
    every rank exits with the verdict. Implements ``loop.exchange.RowPart``.

    Args:
        choose: returns what is audited in a step; None: nothing.
        collectives: collectives over all ranks.
        phases: the phases of the run.
        dry_runs: runs shards without effect.
        where: this rank's host and device.
        devices: the devices of this process.
        report: called with the verdict, on every rank.
        timer: notified of recomputed micro-batches.
    """

    def __init__(
        self,
        choose: Callable[[int, StepPlan], Choice | None],
        collectives: Collectives,
        phases: Phases,
        dry_runs: DryRuns,
        where: str,
        devices: Sequence[torch.device],
        report: Callable[[Verdict], None],
        timer: Listener,
    ) -> None:
        self._num_models = 0
        self._names: dict[nn.Parameter, str] = {}
        """The parameters of all prepared models."""
        self._choose = choose
        self._collectives = collectives
        self._phases = phases
        self._dry_runs = dry_runs
        self._where = where
        self._devices = devices
        self._announce = report
        self._timer = timer
        self._case: _Case | None = None
        self._num_batches = 0
        """The number of batches of the phase whose shards the script has asked for."""
        self._own: GradientSums | None = None
        """The sums of the running micro-batch, if it is audited."""
        self._digests = [_NOTHING, _NOTHING]
        """The digests of the owner's and the auditor's result, as far as the ranks have sent
        them."""

    @override
    def prepared(self, item: Any) -> None:
        """Note its parameters."""
        if isinstance(item, nn.Module) and not isinstance(item, AveragedModel):
            self._num_models += 1
            if self._num_models == 2:
                self._names = {parameter: f"{name} of model 1" for parameter, name in self._names.items()}
            whose = f" of model {self._num_models}" if self._num_models > 1 else ""
            for name, parameter in item.named_parameters():
                self._names.setdefault(parameter, name + whose)

    # A phase

    def runs(self, plan: StepPlan, data: Sequence[Any], leads: bool) -> Iterator[MicroBatchSamples]:
        """Returns the shards to run, for ``PhaseDriver.micro_batches``. Every rank must
        exhaust the shards of the batch that leads the phase, which blocks until all do.

        Raises:
            AuditFailed: the results differ.
        """
        if leads:
            self._case, self._num_batches = None, 0
            step, phase = self._phases.step, self._phases.num_done
            choice = self._choose(step, plan)
            if choice is not None:
                self._case = _Case(
                    choice=choice,
                    position=(step, phase, choice.shard),
                    restart_rng=remember_rng(),
                    owner_sums=GradientSums(self._names),
                    repeat_sums=GradientSums(self._names),
                )
        case, number = self._case, self._num_batches
        self._num_batches += 1
        if case is None:
            return own_micro_batches(plan, data, leads)
        return self._lead(case, plan, data) if leads else self._follow(case, plan, data, number)

    def _lead(self, case: _Case, plan: StepPlan, data: Sequence[Any]) -> Iterator[MicroBatchSamples]:
        rank = self._collectives.rank
        self._share(case, plan, data, 0)
        if rank == case.choice.auditor:
            yield from self._again(case)
        yield from own_micro_batches(plan, data, leads=True)
        if not self._differ(plan):
            self._case = None
            return
        self._open(case)
        if rank in case.choice.judges:
            yield from self._again(case)
        self._close(case)

    def _follow(self, case: _Case, plan: StepPlan, data: Sequence[Any], number: int) -> Iterator[MicroBatchSamples]:
        """Does the same for a batch that is taken inside the step of the leading one."""
        if case.results is None:  # else this rank has no shards of its own, and judges
            self._share(case, plan, data, number)
            if self._collectives.rank == case.choice.auditor:
                yield from self._unpack(case, number).runs
            yield from own_micro_batches(plan, data, leads=False)
        if case.results is not None:
            yield from self._unpack(case, number).runs

    def _again(self, case: _Case) -> Iterator[MicroBatchSamples]:
        """Runs the shard without effect."""
        parcel = self._unpack(case, 0)
        case.repeat_sums = GradientSums(self._names)
        with self._dry_runs.of_shard(case.choice.shard, parcel.per_shard, Listeners([case.repeat_sums, self._timer])):
            case.restart_rng()
            yield from parcel.runs

    # Communication between ranks

    def _share(self, case: _Case, plan: StepPlan, data: Sequence[Any], number: int) -> None:
        """Send the shard's samples from a batch of the phase from its owner to its auditor. Only
        these two communicate."""
        rank, choice = self._collectives.rank, case.choice
        if rank == choice.owner:
            case.parcels.append(self._pack(choice.shard, plan, data, number))
            if rank != choice.auditor:
                self._send_parcel(case.parcels[-1], choice.auditor)
        elif rank == choice.auditor:
            case.parcels.append(self._receive_parcel(choice.owner))

    def _pack(self, shard: int, plan: StepPlan, data: Sequence[Any], number: int) -> bytes:
        runs = [(micro, samples) for micro, samples in zip(plan.micro_batches, data, strict=True) if micro.shard == shard]
        values = self._dry_runs.carried(shard) if number == 0 else []
        try:
            parcel = pack(Parcel(runs=runs, per_shard=values), self._devices)
            # what cannot be unpickled would end the run on the auditor
            unpack(parcel, self._devices)
        except Exception as error:
            raise DataError(
                f"audit: cannot send the samples of shard {shard} to another process: {error!r}. Make the loader yield "
                "objects that can be pickled, or remove --audit.",
                code="audit-samples-not-sendable",
            ) from error
        return parcel

    def _unpack(self, case: _Case, number: int) -> Parcel:
        """The shard's part of a batch of the phase."""
        return unpack(case.parcels[number], self._devices)

    def _send_parcel(self, parcel: bytes, rank: int) -> None:
        self._collectives.send(torch.tensor([len(parcel)]), rank, _TAG)
        self._collectives.send(torch.frombuffer(bytearray(parcel), dtype=torch.uint8), rank, _TAG)

    def _receive_parcel(self, rank: int) -> bytes:
        size = int(self._collectives.recv(torch.zeros(1, dtype=torch.int64), rank, _TAG))
        return self._collectives.recv(torch.empty(size, dtype=torch.uint8), rank, _TAG).numpy().tobytes()

    def _differ(self, plan: StepPlan) -> bool:
        """Whether the two results differ. Every rank must call it; it blocks until all have."""
        if self._collectives.size > 1:
            self._phases.exchange()
        else:
            self.receive([self.report(plan)])
        return self._digests[0] != self._digests[1]

    def report(self, plan: StepPlan) -> list[float]:
        """Returns this rank's two digests in an audited phase, or ``_NOTHING``, for ``RowPart``."""
        case, rank = self._case, self._collectives.rank
        if case is None:
            return []
        return [
            float(digest_of(case.owner_sums.read())) if rank == case.choice.owner else _NOTHING,
            float(digest_of(case.repeat_sums.read())) if rank == case.choice.auditor else _NOTHING,
        ]

    def receive(self, rows: Sequence[Sequence[float]]) -> None:
        """Takes the digests of all ranks, for ``RowPart``."""
        if self._case is not None:
            self._digests = [max(digests) for digests in zip(*rows, strict=True)]

    def _open(self, case: _Case) -> None:
        """Open a case because the two results differ: send the shard to the judges. Every rank must
        call it."""
        rank, choice = self._collectives.rank, case.choice
        case.results = [("first", self._computed(case.owner_sums))] if rank == choice.owner else []
        case.results += [("second", self._computed(case.repeat_sums))] if rank == choice.auditor else []
        for judge_rank in choice.judges:
            if judge_rank in (choice.owner, choice.auditor):
                continue
            if rank == choice.owner:
                self._collectives.send(torch.tensor([len(case.parcels)]), judge_rank, _TAG)
                for parcel in case.parcels:
                    self._send_parcel(parcel, judge_rank)
            elif rank == judge_rank:
                number = int(self._collectives.recv(torch.zeros(1, dtype=torch.int64), choice.owner, _TAG))
                case.parcels = [self._receive_parcel(choice.owner) for _ in range(number)]

    def _close(self, case: _Case) -> None:
        """Report the verdict. Every rank must call it; it blocks until all have.

        Raises:
            AuditFailed: always.
        """
        assert case.results is not None
        judges = [("again", self._computed(case.repeat_sums))] if self._collectives.rank in case.choice.judges else []
        mine = [(role, asdict(computed)) for role, computed in (*case.results, *judges)]
        by_role: dict[str, list[Computed]] = {}
        for role, computed in (pair for results in self._collectives.all_gather_plain(mine) for pair in results):
            by_role.setdefault(role, []).append(Computed(**computed))
        verdict = judge(by_role["first"][0], by_role["second"][0], by_role["again"], case.position)
        self._phases.found_wrong = True
        self._announce(verdict)
        ignore_interrupts()
        if self._collectives.size > 1:
            # the first rank to exit ends all, so the verdict must be out by then
            self._collectives.barrier()
        raise AuditFailed(verdict.headline)

    def _computed(self, sums: GradientSums) -> Computed:
        return Computed(rank=self._collectives.rank, where=self._where, sums=sums.read())

    # Listening to the shard's owner

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        case = self._case
        if case is not None and micro.shard == case.choice.shard and self._collectives.rank == case.choice.owner:
            self._own = case.owner_sums
            self._own.begin_shard(micro)

    @override
    def before_backward(self, loss: Tensor, weight: float | Tensor | None) -> None:
        if self._own is not None:
            self._own.before_backward(loss, weight)

    @override
    def end_shard(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.end_shard()

    @override
    def abandon_step(self) -> None:
        self._case = None
        self.end_shard()


class AuditTimer(Listener):
    """A listener that times the micro-batches that an audit recomputes, as logging. The wait for
    their samples from the owner counts as waiting. Neither is reported to other ranks as being
    busy."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        self._clock.charge(WAITING, then=IN_AUDIT)

    @override
    def end_shard(self) -> None:
        self._clock.charge(LOGGING, then=ENDING)
