"""Writes a process's part of the digest journal while it trains: see ``replay.digests`` for what is written.

In most steps it only notes the samples' identities and the losses, of which a text is made every so many steps. It draws no
random number, changes no tensor and sends nothing. The state's digests are those that the ranks compare.
"""

from __future__ import annotations

import contextlib
import marshal
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
from lockstep.replay.digests import NOTHING, PhaseGradient, is_due
from lockstep.sync.gradients import widen
from lockstep.trace.lines import exact
from lockstep.trace.subjects import Subjects

_Late = tuple[str, list[Any]]
"""A micro-step whose losses are on a GPU: the text before them, and they."""


class DigestJournal(Listener):
    """The digest journal of one process.

    Args:
        writer: of the process's file.
        every: steps between lines (see ``digests.is_due``); 0: there are only those of ``always``.
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
        self._micro: MicroStep | None = None
        self._samples = 0
        """The digest of the micro-step's identities so far."""
        self._contents: list[str] = []
        """Of what its samples hold, one for each loader that went along."""
        self._losses: list[Any] = []
        """Numbers, or tensors on a GPU."""
        self._of_step: list[str | _Late] = []
        """The micro-steps of the step at hand, which may yet be discarded."""
        self._noted: list[str | _Late] = []
        """Those of earlier steps. Texts, since thousands of containers that live so long would keep Python's collector busy."""
        self._gradients: list[PhaseGradient] = []
        self._has_seen_nan = False

    def begin_step(self, step: int) -> None:
        """See Listener."""
        self._step = step
        self._is_due = is_due(step, self._every) or step in self._always
        self.drop()

    def begin_phase(self, phase: int) -> None:
        """See Listener."""
        self._phase = phase

    def begin_shard(self, micro: MicroStep) -> None:
        """See Listener."""
        self._micro, self._samples = micro, 0
        self._contents, self._losses = [], []

    def received(self, micro: MicroStep, data: Any) -> None:
        """See Listener."""
        self._samples = zlib.crc32(_as_bytes(micro.samples), self._samples)
        if self._is_due:
            self._contents.append(digest(data))

    def before_backward(self, loss: Tensor, weight: float | None) -> None:
        """See Listener."""
        if not loss.is_cpu:
            self._losses.append(loss.detach())  # to be read when the GPU has long computed it
            return
        number = loss.item()
        self._losses.append(number)
        if number != number and not self._has_seen_nan and self._micro is not None:
            self._has_seen_nan = True  # this step may be the last that the process lives to see
            self._write([*self._noted, *self._of_step, self._entry(self._micro)], self._step)

    def end_shard(self) -> None:
        """See Listener."""
        micro, self._micro = self._micro, None
        if micro is not None:
            self._of_step.append(self._entry(micro))

    def _entry(self, micro: MicroStep) -> str | _Late:
        """As ``digests.row``, in half of its time."""
        content = digest(self._contents)[:16] if self._contents else NOTHING
        text = f"{self._step} {self._phase} {micro.shard} {micro.part} {self._samples:08x} {content} "
        try:
            return text + (",".join([loss.hex() for loss in self._losses]) or NOTHING)
        except AttributeError:  # tensors have no such method
            return text, self._losses

    def end_phase(self, phase: int) -> None:
        """See Listener."""
        if self._is_due and self._is_main:
            gradients = {name: grad for name, grad in self._subjects.gradients().items() if not is_dtensor(grad)}
            sums = bit_sums(list(gradients.values()))
            self._gradients.append(
                PhaseGradient(short_digest(dict(zip(gradients, sums, strict=True))), exact(norm_of(gradients.values())))
            )

    def drop(self) -> None:
        """See Listener."""
        self._micro = None
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

    def _write(self, noted: Sequence[str | _Late], step: int, **more: Any) -> None:
        numbers = iter(_read([loss for entry in noted if isinstance(entry, tuple) for loss in entry[1]]))
        texts = [
            entry if isinstance(entry, str) else entry[0] + ",".join([next(numbers).hex() for _ in entry[1]])
            for entry in noted
        ]
        self._writer.write("steps", last=step, shards=";".join(texts), **more)


def _as_bytes(identities: Sequence[Any]) -> bytes:
    if type(identities) is list:
        with contextlib.suppress(ValueError):  # of other types than Python's own
            return marshal.dumps(identities, 2)  # a third of the time; later formats depend on how often an object is used
    try:
        return array("q", identities).tobytes()
    except (TypeError, OverflowError):  # keys of a table, say
        return repr([item.tolist() if isinstance(item, Tensor) else item for item in identities]).encode()


def _read(losses: Sequence[Any]) -> list[float]:
    """The numbers of losses, some of which are on GPUs: read all at once."""
    gpu = next((loss.device for loss in losses if isinstance(loss, Tensor)), None)
    if gpu is None:
        return list(losses)
    tensors = [loss.reshape(()) if isinstance(loss, Tensor) else torch.tensor(loss) for loss in losses]
    numbers: list[float] = torch.stack([tensor.to(gpu, torch.float64) for tensor in tensors]).tolist()
    return numbers


def norm_of(gradients: Iterable[Tensor]) -> float:
    """The norm of all gradients together, for people to read: its last bits mean nothing."""
    norms = [torch.linalg.vector_norm(widen(g.coalesce().values() if g.is_sparse else g)) for g in gradients]
    if not norms:
        return 0.0
    return math.sqrt(sum(norm**2 for norm in torch.stack([norm.to(norms[0].device).double() for norm in norms]).tolist()))
