"""Audits a run: every N steps a second rank recomputes one shard, and the gradients are compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from lockstep.comm.collectives import Collectives
from lockstep.data.streams import remember_rng
from lockstep.errors import DataError
from lockstep.listener import Listener, Listeners
from lockstep.plan.shards import MicroStep, StepPlan
from lockstep.prepare.per_shard import PerShard
from lockstep.stopping import AuditFailed, ignore_interrupts, say
from lockstep.sync.buffers import ShardBuffers
from lockstep.tools.audit.choice import Choice
from lockstep.tools.audit.gradient_sums import GradientSums, digest_of
from lockstep.tools.audit.parcel import Parcel, pack, unpack
from lockstep.tools.audit.recomputation import Course, NoAccounts, UndoingEngine
from lockstep.tools.audit.verdict import Computed, Verdict, judge

_NOTHING = torch.iinfo(torch.int64).min
_TAG = (1 << 30) - 1
"""Message tag, just below those of ``sync.exchange``."""

Runs = Sequence[tuple[MicroStep, Any]]
"""Micro-steps with their samples."""


@dataclass(kw_only=True)
class _Case:
    """The audit of a phase."""

    choice: Choice
    position: tuple[int, int, int]
    """The step, its phase, and the shard."""
    restart_rng: Callable[[], None]
    """Lets the random streams continue from where they were before the phase's shards: each run of the shard begins there if it
    has no stream of its own (V = 1)."""
    owner_sums: GradientSums = field(default_factory=GradientSums)
    """Of the shard, on its owner."""
    repeat_sums: GradientSums = field(default_factory=GradientSums)
    """Of the same shard, when this rank recomputes it."""
    asked: list[StepPlan] = field(default_factory=list)
    """The batches of the phase, in the order in which the script asked for their shards."""
    parcels: list[bytes] = field(default_factory=list)
    """The shard's samples from each of these batches; empty bytes if they cannot be sent."""
    results: list[tuple[str, Computed]] | None = None
    """This rank's results with their roles, once the owner and the auditor are known to differ; None before that."""

    def sums_of(self, micro: MicroStep) -> GradientSums:
        """The sums to which a micro-step of the shard contributes on this rank."""
        return self.repeat_sums if micro.is_again else self.owner_sums


class Auditor(Listener):
    """Audits a run, on one rank.

    When an audited phase begins, the owner of the shard sends its samples to the auditor, which runs them before its own
    shards. Once all shards have run, the two compare sums of bits. If these differ, the judges run the shard as well, and every
    rank ends with the verdict. Recomputing leaves no trace in gradients, buffers, random streams, values or logs.

    Args:
        choose: what is audited of a step; None: nothing.
        collectives: over all ranks.
        buffers: restores buffers after each shard; None: the run does not do that.
        where: this rank's host and device.
        devices: of this process.
        report: called with the verdict, on every rank.
    """

    def __init__(
        self,
        choose: Callable[[int, StepPlan], Choice | None],
        collectives: Collectives,
        buffers: ShardBuffers | None,
        where: str,
        devices: Sequence[torch.device],
        report: Callable[[Verdict], None],
    ) -> None:
        self._models: list[nn.Module] = []
        self._names: dict[nn.Parameter, str] = {}
        """The parameters of all prepared models."""
        self.per_shard: list[PerShard] = []
        """The states that each shard carries from batch to batch."""
        self._engine = UndoingEngine(self._names, self._models, buffers)
        self.course = Course(NoAccounts(), self._engine, self)
        """What recomputed micro-steps run on."""
        self.has_wrong_result = False
        """Whether an audit has caught a wrong result, after which nothing may be saved."""
        self._choose = choose
        self._collectives = collectives
        self._where = where
        self._devices = devices
        self._report = report
        self._case: _Case | None = None
        self._micro: MicroStep | None = None
        """The micro-step whose gradients are being summed."""
        self._lent: list[Any] = []
        """The owner's ``per_shard`` values of the audited shard; while it is recomputed, this rank's values, swapped out."""
        self._has_warned = False

    def also_notify(self, listener: Listener) -> None:
        """Notify another listener of recomputed micro-steps."""
        self.course = self.course._replace(listeners=Listeners([self, listener]))

    def prepared(self, item: Any) -> None:
        """See Listener."""
        if isinstance(item, nn.Module) and not isinstance(item, AveragedModel):
            self._models.append(item)
            self._names.clear()
            for number, model in enumerate(self._models, 1):
                whose = f" of model {number}" if len(self._models) > 1 else ""
                for name, parameter in model.named_parameters():
                    self._names.setdefault(parameter, name + whose)

    # A phase

    def begin_audit(self, step: int, phase: int, plan: StepPlan) -> None:
        """A phase begins. Local."""
        choice = self._choose(step, plan)
        self._case = None
        if choice is not None:
            self._case = _Case(choice=choice, position=(step, phase, choice.shard), restart_rng=remember_rng())

    def before_shards(self, plan: StepPlan, data: Sequence[Any]) -> Runs:
        """What this rank runs of a batch before its own shards: on the auditor, the audited shard, received from its owner.
        Call it when the script asks for the first shard of a batch; only these two ranks communicate."""
        case, rank = self._case, self._collectives.rank
        if case is None:
            return ()
        number, choice = self._number(case, plan), case.choice
        if case.results is not None:  # a rank without shards of its own
            return self._unpack(case, number)
        if rank == choice.owner:
            case.parcels.append(self._pack(choice.shard, plan, data, number))
            if rank != choice.auditor:
                self._send(case.parcels[-1], choice.auditor)
        elif rank == choice.auditor:
            case.parcels.append(self._receive(choice.owner))
        return self._unpack(case, number) if rank == choice.auditor else ()

    def after_shards(self, plan: StepPlan) -> Runs:
        """What this rank runs of a batch after all other shards: on the judges, the audited shard again, if two results differ.
        Every rank must call it for the batch that leads the phase; that call blocks until all ranks have made it.

        Raises:
            AuditFailed: the results differ.
        """
        case = self._case
        if case is None:
            return ()
        number = self._number(case, plan)
        if number > 0:
            return self._unpack(case, number) if case.results is not None else ()
        if case.results is None:
            if not self._differ(case):
                self._case = None
                return ()
            self._open(case)
            if self._collectives.rank in case.choice.judges:
                return self._unpack(case, number)
        self._close(case)
        return ()

    @staticmethod
    def _number(case: _Case, plan: StepPlan) -> int:
        for number, asked in enumerate(case.asked):
            if asked is plan:
                return number
        case.asked.append(plan)
        return len(case.asked) - 1

    # Communication between ranks

    def _pack(self, shard: int, plan: StepPlan, data: Sequence[Any], number: int) -> bytes:
        runs = [(micro, samples) for micro, samples in zip(plan.micro_steps, data, strict=True) if micro.shard == shard]
        values = [item.of(shard) for item in self.per_shard] if number == 0 else []
        try:
            parcel = pack(Parcel(runs=runs, per_shard=values), self._devices)
            unpack(parcel, self._devices)  # what cannot be unpickled would end the run on the auditor
            return parcel
        except Exception as error:
            why = f"the samples of shard {shard} cannot be sent to another process: {error!r}"
            if number > 0:
                raise DataError(f"audit: {why}. Have the loader yield what pickle can, or leave --audit out") from error
            if not self._has_warned:
                say(f"WARNING: this shard is not audited, for {why}")
            self._has_warned = True
            return b""

    def _unpack(self, case: _Case, number: int) -> Runs:
        if number >= len(case.parcels) or not case.parcels[number]:
            return ()
        parcel = unpack(case.parcels[number], self._devices)
        if number == 0:
            case.repeat_sums, self._lent = GradientSums(), list(parcel.per_shard)
        return parcel.runs

    def _send(self, parcel: bytes, rank: int) -> None:
        self._collectives.send(torch.tensor([len(parcel)]), rank, _TAG)
        if parcel:
            self._collectives.send(torch.frombuffer(bytearray(parcel), dtype=torch.uint8), rank, _TAG)

    def _receive(self, rank: int) -> bytes:
        size = int(self._collectives.recv(torch.zeros(1, dtype=torch.int64), rank, _TAG))
        return self._collectives.recv(torch.empty(size, dtype=torch.uint8), rank, _TAG).numpy().tobytes() if size else b""

    def _differ(self, case: _Case) -> bool:
        """Whether the two results differ. Every rank must call it; it blocks until all have."""
        rank, choice, digests = self._collectives.rank, case.choice, list[int]()
        if case.parcels and case.parcels[0]:
            digests += [digest_of(case.owner_sums.read())] if rank == choice.owner else []
            digests += [digest_of(case.repeat_sums.read())] if rank == choice.auditor else []
        numbers = [max(digests, default=_NOTHING), max([-number for number in digests], default=_NOTHING)]
        if self._collectives.size > 1:
            numbers = self._collectives.all_reduce(torch.tensor(numbers), "max").tolist()
        return numbers[0] != -numbers[1] and numbers[0] != _NOTHING

    def _open(self, case: _Case) -> None:
        """Open a case because the two results differ: send the shard to the judges. Every rank must call it."""
        rank, choice = self._collectives.rank, case.choice
        case.results = [("first", self._computed(case.owner_sums))] if rank == choice.owner else []
        case.results += [("second", self._computed(case.repeat_sums))] if rank == choice.auditor else []
        for judge_rank in choice.judges:
            if judge_rank in (choice.owner, choice.auditor):
                continue
            if rank == choice.owner:
                self._collectives.send(torch.tensor([len(case.parcels)]), judge_rank, _TAG)
                for parcel in case.parcels:
                    self._send(parcel, judge_rank)
            elif rank == judge_rank:
                number = int(self._collectives.recv(torch.zeros(1, dtype=torch.int64), choice.owner, _TAG))
                case.parcels = [self._receive(choice.owner) for _ in range(number)]

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
        self.has_wrong_result = True
        self._report(verdict)
        ignore_interrupts()
        if self._collectives.size > 1:
            self._collectives.barrier()  # the first rank to exit ends all, so the verdict must be out by then
        raise AuditFailed(verdict.headline)

    def _computed(self, sums: GradientSums) -> Computed:
        return Computed(rank=self._collectives.rank, where=self._where, sums=sums.read())

    # Listening to micro-steps

    def begin_shard(self, micro: MicroStep) -> None:
        """See Listener."""
        case = self._case
        if case is None:
            return
        is_own = self._collectives.rank == case.choice.owner and micro.shard == case.choice.shard
        if not micro.is_again and not is_own:
            return
        self._micro = micro
        if micro.is_again and micro.begins_shard:
            self._swap(micro.shard)
            case.restart_rng()
        case.sums_of(micro).begin(self._names, micro.part)

    def before_backward(self, loss: Tensor, weight: float | None) -> None:
        """See Listener."""
        if self._micro is not None and self._case is not None:
            self._case.sums_of(self._micro).before_backward(loss)

    def end_shard(self) -> None:
        """See Listener."""
        micro, self._micro = self._micro, None
        if micro is not None and self._case is not None:
            self._case.sums_of(micro).end()
            if micro.is_again and micro.ends_shard:
                self._swap(micro.shard)

    def drop(self) -> None:
        """See Listener."""
        case, self._case = self._case, None
        micro, self._micro = self._micro, None
        self._engine.drop()
        if case is not None and micro is not None:
            case.sums_of(micro).end()
            if micro.is_again:
                self._swap(micro.shard)

    def _swap(self, shard: int) -> None:
        self._lent = [item.swap(shard, value) for item, value in zip(self.per_shard, self._lent, strict=True)]
