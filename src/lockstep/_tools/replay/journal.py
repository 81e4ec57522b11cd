"""Writes a process's part of the digest journal during training, in the format of
``replay.digests``.

In most steps it only records the samples' identities and the losses, which are formatted every
``every`` steps. It draws no random numbers and changes no tensors. The state's digests are the ones
that the ranks compare anyway (``recovery.fingerprint``). With ``fsdp`` they are digests of whole
tensors: each rank adds the bits of its part.
"""

from __future__ import annotations

import itertools
import marshal
import math
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lockstep._base.digest import UnreadSums, digest
from lockstep._data.values import all_on_cpu
from lockstep._listener import Listener, Stage
from lockstep._plan.shards import MicroBatch
from lockstep._state.recovery.fingerprint import Fingerprint, Reading, short_digest
from lockstep._sync.gradients import widen
from lockstep._tools.replay.digests import NOTHING
from lockstep._tools.verify.trace.lines import TraceWriter, exact
from lockstep._tools.verify.trace.subjects import Subjects
from lockstep._world.comm.bit_sums import unread_bit_sums
from lockstep._world.comm.dtensors import is_cut, sum_over_ranks, to_local

_FIELDS = 7
"""The number of fields that are noted of a micro-batch: its step, phase, shard and part, digests
of its samples' identities and of their content, and its losses (a number, a tensor on a GPU, or a
tuple of several)."""


_OfPhase = tuple[list[str], UnreadSums, list[Tensor]]
"""The names of gradients, the sums of their bits, and their norms."""


@dataclass(frozen=True, slots=True)
class _Line:
    """What a line will contain."""

    step: int
    noted: list[Any]
    """The fields of micro-batches."""
    gradients: list[_OfPhase]
    read: list[Any]
    """What ``reading`` reads, too: the numbers of the gradients, and then losses that were on a
    GPU."""
    reading: Reading
    """The digests of the state."""


class DigestJournal(Listener):
    """The digest journal of one process.

    Args:
        writer: of the process's file.
        every: steps between lines (see ``is_due``); 0: only for those in ``always``.
        fingerprint: of the run's state.
        subjects: the prepared objects.
        is_main: whether this is rank 0, which also writes what is the same on all ranks.
        always: further steps that are written in full.
    """

    stage = Stage.EARLY

    def __init__(
        self,
        writer: TraceWriter,
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
        """Whether the current step ends with a line."""
        self._micro: MicroBatch | None = None
        self._samples = 0
        """The digest of the identities of the micro-batch's samples so far."""
        self._contents: list[str] = []
        """The digests of the micro-batch's content, one for each loader."""
        self._losses: list[Any] = []
        """The micro-batch's losses: numbers, or tensors on a GPU."""
        self._noted: list[Any] = []
        """The fields of all micro-batches since the last line, which are faster to format together.
        They are in one flat list, since thousands of long-lived containers would keep Python's
        garbage collector busy."""
        self._num_safe = 0
        """The number of fields of earlier steps. The current step may yet be discarded."""
        self._gradients: list[_OfPhase] = []
        """The gradients of each phase of the step, still to be read."""
        self._read: list[Any] = []
        """These numbers of all phases, and then losses that were on a GPU, as soon as they have
        been read."""
        self._has_seen_nan = False
        self._unwritten: _Line | None = None
        """The line of a step, which the next step writes: a step that computes digests should not
        format them, too. And by then a GPU has computed them."""

    @override
    def begin_step(self, step: int) -> None:
        self._step = step
        self._phase = 0
        self._is_due = is_due(step, self._every) or step in self._always
        self._num_safe = len(self._noted)

    @override
    def received(self, micro: MicroBatch, data: Any) -> None:
        if self._micro is None:
            self._micro, self._samples, self._contents, self._losses = micro, 0, [], []
        self._samples = zlib.crc32(_as_bytes(micro.samples), self._samples)
        if self._is_due:
            self._contents.append(digest(data))

    @override
    def before_backward(self, loss: Tensor, weight: float | Tensor | None) -> None:
        if not loss.is_cpu:
            # Reading a loss now would wait for the GPU in each shard. It is read with the state's
            # sums, in one copy, when the GPU has long computed it.
            self._losses.append(loss.detach())
            return
        number = loss.item()
        self._losses.append(number)
        if number != number and not self._has_seen_nan and self._micro is not None:
            # Written immediately: with on_nan="stop" the process ends in this step, and the line
            # is what `lockstep replay --step nan` looks for.
            self._has_seen_nan = True
            self._finish()
            noted = [*self._noted, *self._entry(self._micro)]
            self._write(noted, _read(_losses_in(noted)), self._step)

    @override
    def end_shard(self) -> None:
        if self._micro is not None:
            self._noted += self._entry(self._micro)
            self._micro = None

    def _entry(self, micro: MicroBatch) -> tuple[Any, ...]:
        """The fields of the current micro-batch."""
        losses = self._losses[0] if len(self._losses) == 1 else tuple(self._losses)
        content = digest(self._contents)[:16] if self._contents else NOTHING
        return self._step, self._phase, micro.shard, micro.part, self._samples, content, losses

    @override
    def end_phase(self, phase: int) -> None:
        self._phase = phase + 1
        gradients = self._subjects.gradients() if self._is_due else {}
        if self._is_due and (self._is_main or any(map(is_cut, gradients.values()))):
            values = list(gradients.values())
            self._gradients.append((list(gradients), unread_bit_sums(values), _norms_of(values)))

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        if self._is_due:
            losses = [loss.reshape(()).double() for loss in _losses_in(self._noted) if isinstance(loss, Tensor)]
            of_gradients = [vector for _, sums, norms in self._gradients for vector in (*sums.vectors, *norms)]
            self._read = self._fingerprint.read_together(of_gradients + losses)

    @override
    def abandon_step(self) -> None:
        self._micro = None
        del self._noted[self._num_safe :]
        self._gradients = []

    @override
    def agreed(self, step: int) -> None:
        if self._unwritten is not None:
            self._finish()
        if not self._is_due:
            return
        self._is_due = False
        self._unwritten = _Line(step, self._noted, self._gradients, self._read, self._fingerprint.reading_after(step))
        self._noted, self._gradients, self._read, self._num_safe = [], [], [], 0

    def _finish(self) -> None:
        """Writes the line of a step that ended with one."""
        line, self._unwritten = self._unwritten, None
        if line is None:
            return
        more: dict[str, Any] = {}
        sums, read = line.reading.sums(), iter(line.read)
        gradients = []
        for names, unread, norms in line.gradients:
            bits = unread.in_order(vector.tolist() for vector in itertools.islice(read, len(unread.vectors)))
            digest_of_all = short_digest(dict(zip(names, bits, strict=True)))
            gradients.append((digest_of_all, exact(_norm_of_all(itertools.islice(read, len(norms))))))
        losses = [next(read) if isinstance(loss, Tensor) else loss for loss in _losses_in(line.noted)]
        if self._is_main:
            more = {"gradients": gradients, "state": {owner: short_digest(parts) for owner, parts in sums.items()}}
        self._write(line.noted, losses, line.step, **more)

    @override
    def end_run(self, step: int, *, failed: bool) -> None:
        self._finish()
        if self._noted:
            self._write(self._noted, _read(_losses_in(self._noted)), step)
        self._writer.close()

    def _write(self, noted: Sequence[Any], losses: Sequence[float], step: int, **more: Any) -> None:
        columns, numbers, texts = [noted[field::_FIELDS] for field in range(_FIELDS)], iter(losses), []
        for step_number, phase, shard, part, samples, content, several in zip(*columns, strict=True):
            count = len(several) if isinstance(several, tuple) else 1
            exact_losses = ",".join([number.hex() for number in itertools.islice(numbers, count)]) or NOTHING
            # As ``digests.row``:
            texts.append(f"{step_number} {phase} {shard} {part} {samples:08x} {content} {exact_losses}")
        self._writer.write(event="steps", last=step, shards=";".join(texts), **more)


def is_due(step: int, every: int) -> bool:
    """Whether a line is written after a step, with gradients and state: every ``every`` steps, and
    before the first of these after steps 1, 2, 4, 8, ..., so that short runs have some, too."""
    return every > 0 and (step % every == 0 or (step < every and step & (step - 1) == 0))


def _as_bytes(identities: Sequence[Any]) -> bytes:
    if type(identities) is list:
        try:
            # three times as fast; later formats depend on reference counts
            return marshal.dumps(identities, 2)
        except ValueError:  # not built-in types
            pass
    try:
        return array("q", identities).tobytes()
    except (TypeError, OverflowError):  # not integers: keys of a table, say
        return repr([item.tolist() if isinstance(item, Tensor) else item for item in identities]).encode()


def _losses_in(noted: Sequence[Any]) -> list[Any]:
    """The losses of micro-batches, in order."""
    fields = noted[_FIELDS - 1 :: _FIELDS]
    return [loss for item in fields for loss in (item if isinstance(item, tuple) else (item,))]


def _read(losses: Sequence[Any]) -> list[float]:
    """The values of losses; those on GPUs are read together."""
    numbers = iter(all_on_cpu([loss.reshape(()).double() for loss in losses if isinstance(loss, Tensor)]))
    return [next(numbers) if isinstance(loss, Tensor) else loss for loss in losses]


def norm_of(gradients: Sequence[Tensor]) -> float:
    """The norm of all gradients together. For display: its last bits are not reproducible."""
    return _norm_of_all(all_on_cpu(_norms_of(gradients)))


def _norms_of(gradients: Sequence[Tensor]) -> list[Tensor]:
    """The norms, as vectors of float64, where the gradients are. With gradients that are cut, every
    rank must call it."""
    groups: dict[tuple[torch.device, bool], list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, is_cut(gradient)), []).append(gradient)
    vectors = []
    for (_, are_cut), some in groups.items():
        parts = [widen(g.coalesce().values() if g.is_sparse else to_local(g)) for g in some]
        norms = torch.stack(torch._foreach_norm(parts)).double()
        # Of gradients that are cut, each rank has a part.
        vectors.append(sum_over_ranks(norms.square(), some[0]).sqrt() if are_cut else norms)
    return vectors


def _norm_of_all(vectors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(norm**2 for vector in vectors for norm in vector.tolist()))
