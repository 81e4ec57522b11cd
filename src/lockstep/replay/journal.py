"""Writes a process's part of the digest journal while it trains: see ``replay.digests`` for what is written.

In most steps it only notes the samples' identities and the losses, of which a text is made every so many steps. It draws no
random number, changes no tensor and sends nothing. The state's digests are those that the ranks compare.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.comm.dtensors import is_dtensor
from lockstep.digest import bit_sums, digest
from lockstep.listener import Listener
from lockstep.measure.events import EventWriter
from lockstep.plan.shards import MicroStep
from lockstep.recovery.fingerprint import Fingerprint, short_digest
from lockstep.replay.digests import NOTHING, PhaseGradient, Shard, row
from lockstep.sync.gradients import widen
from lockstep.trace.lines import exact
from lockstep.trace.subjects import Subjects
from lockstep.trace.traced_run import ShardKey


class _Noted:
    """A micro-step, until its text is made."""

    __slots__ = ("contents", "key", "losses", "samples")

    def __init__(self, key: ShardKey) -> None:
        self.key = key
        self.samples: list[Sequence[Any]] = []
        """One for each loader that went along."""
        self.contents: list[str] = []
        self.losses: list[float | Tensor] = []


class DigestJournal(Listener):
    """The digest journal of one process.

    Args:
        writer: of the process's file.
        every: steps between lines; 0: there are only those of ``always``.
        fingerprint: of the run's state.
        subjects: what is trained.
        is_main: whether this is rank 0, which also writes what is the same on all.
        always: steps of which all is written, besides.
    """

    def __init__(
        self,
        writer: EventWriter,
        every: int,
        fingerprint: Fingerprint,
        subjects: Subjects,
        *,
        is_main: bool,
        always: range = range(0),
    ) -> None:
        self._writer = writer
        self._every = every
        self._fingerprint = fingerprint
        self._subjects = subjects
        self._is_main = is_main
        self._always = always
        self._step = self._phase = 0
        self._is_due = False
        """Whether the step at hand ends with a line."""
        self._current: _Noted | None = None
        self._of_step: list[_Noted] = []
        """The micro-steps of the step at hand, which may yet be discarded."""
        self._noted: list[_Noted] = []
        self._gradients: list[PhaseGradient] = []
        self._has_seen_nan = False

    def begin_step(self, step: int) -> None:
        """See Listener."""
        self._step = step
        self._is_due = (self._every > 0 and step % self._every == 0) or step in self._always
        self.drop()

    def begin_phase(self, phase: int) -> None:
        """See Listener."""
        self._phase = phase

    def begin_shard(self, micro: MicroStep) -> None:
        """See Listener."""
        self._current = _Noted(ShardKey(self._step, self._phase, micro.shard, micro.part))
        self._of_step.append(self._current)

    def received(self, micro: MicroStep, data: Any) -> None:
        """See Listener."""
        if self._current is not None:
            self._current.samples.append(micro.samples)
            if self._is_due:
                self._current.contents.append(digest(data))

    def before_backward(self, loss: Tensor, weight: float | None) -> None:
        """See Listener."""
        if self._current is None:
            return
        if not loss.is_cpu:
            self._current.losses.append(loss.detach())  # to be read when the GPU has long computed it
            return
        number = loss.item()
        self._current.losses.append(number)
        if number != number and not self._has_seen_nan:
            self._has_seen_nan = True
            self._write(self._noted + self._of_step, self._step)  # this step may be the last that the process lives to see

    def end_shard(self) -> None:
        """See Listener."""
        self._current = None

    def end_phase(self, phase: int) -> None:
        """See Listener."""
        if self._is_due and self._is_main:
            found = {name: grad for name, grad in self._subjects.gradients().items() if not is_dtensor(grad)}
            sums = bit_sums(list(found.values()))
            self._gradients.append(
                PhaseGradient(short_digest(dict(zip(found, sums, strict=True))), exact(norm_of(found.values())))
            )

    def drop(self) -> None:
        """See Listener."""
        self._current = None
        self._of_step, self._gradients = [], []

    def end_step(self, step: int, num_samples: int) -> None:
        """See Listener."""
        self._noted += self._of_step
        self._of_step = []

    def tick(self, step: int) -> None:
        """See Listener."""
        if not self._is_due:
            return
        self._is_due = False
        more: dict[str, Any] = {}
        if self._is_main:
            sums = self._fingerprint.after(step)
            more = {
                "gradients": self._gradients,
                "state": {owner: short_digest(parts) for owner, parts in sums.items()},
            }
        self._write(self._noted, step, **more)
        self._noted, self._gradients = [], []

    def end_run(self, step: int, *, failed: bool) -> None:
        """See Listener."""
        if self._noted:
            self._write(self._noted, step)
        self._writer.close()

    def _write(self, noted: Sequence[_Noted], step: int, **more: Any) -> None:
        _read_devices(noted)
        self._writer.write("steps", last=step, shards=[_text(one) for one in noted], **more)


def _text(noted: _Noted) -> str:
    samples = 0
    for identities in noted.samples:
        samples = zlib.crc32(_as_bytes(identities), samples)
    content = NOTHING if not noted.contents else short_digest(dict(enumerate(noted.contents)))  # type: ignore[arg-type]
    return row(noted.key, Shard(f"{samples:08x}", content, tuple(exact(float(loss)) for loss in noted.losses)))


def _as_bytes(identities: Sequence[Any]) -> bytes:
    try:
        return array("q", identities).tobytes()
    except (TypeError, OverflowError):  # keys of a table, say, or tensors
        return repr([item.tolist() if isinstance(item, Tensor) else item for item in identities]).encode()


def _read_devices(noted: Sequence[_Noted]) -> None:
    """Read the losses that are on GPUs, all at once."""
    waiting = [(one, n, loss) for one in noted for n, loss in enumerate(one.losses) if isinstance(loss, Tensor)]
    if waiting:
        gpu = waiting[0][2].device
        numbers = torch.stack([loss.reshape(()).to(gpu, torch.float64) for _, _, loss in waiting]).tolist()
        for (one, n, _), number in zip(waiting, numbers, strict=True):
            one.losses[n] = number


def norm_of(gradients: Iterable[Tensor]) -> float:
    """The norm of all gradients together, for people to read: its last bits mean nothing."""
    norms = [torch.linalg.vector_norm(widen(g.coalesce().values() if g.is_sparse else g)) for g in gradients]
    if not norms:
        return 0.0
    return math.sqrt(sum(norm**2 for norm in torch.stack([norm.to(norms[0].device).double() for norm in norms]).tolist()))
