"""What a replay has recorded of its steps, as values and as lines to print. Pure, except for
reading files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep._base.errors import UsageError
from lockstep._tools.replay.digests import Digests, read_digests
from lockstep._tools.replay.request import Request
from lockstep._tools.verify.trace.lines import number
from lockstep._tools.verify.trace.traced_run import TracedRun, read_run

_SHOWN_SAMPLES = 8
_SHOWN_NORMS = 12


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """All that a replay has recorded."""

    run: TracedRun
    digests: Digests

    def norms(self, step: int) -> list[dict[str, float]]:
        """The norms of a step's gradients by parameter, for each phase."""
        return [_numbers(norms) for norms in self.run.steps[step][0].get("norms_by_name", ())]

    def rates(self, step: int) -> dict[str, float]:
        """The learning rates of a step."""
        return _numbers(self.run.steps[step][0].get("rates", {}))

    @property
    def batch_norm(self) -> list[str]:
        """The names of layers that normalize over the samples of a shard, so that samples cannot be
        computed alone."""
        return [*self.run.layers.get("batch_norm", ()), *self.run.layers.get("sync_batch_norm", ())]


def read_recorded(directory: Path) -> Recorded | None:
    """What a replay has recorded in its directory; None: not a single step."""
    try:
        return Recorded(run=read_run(directory), digests=read_digests(directory))
    except UsageError:
        return None


def _numbers(texts: Mapping[str, str]) -> dict[str, float]:
    return {name: number(text) for name, text in texts.items()}


def lines_of_steps(request: Request, recorded: Recorded, *, with_samples: bool) -> Iterator[str]:
    """What is shown of each step; ``with_samples``: all of a shard's samples, not only the
    first."""
    run = recorded.run
    for step in (step for step in request.steps if step in run.steps):
        rates = ", ".join(f"{name} {rate:g}" for name, rate in recorded.rates(step).items())
        yield f"step {step}" + (f"  learning rate: {rates}" if rates else "")
        for key, owners in run.shards_of(step):
            if request.shard not in (None, key.shard):
                continue
            line = owners[0][1]
            samples = [sample for batch in line["batches"] for sample in batch["samples"]]
            where = f"shard {key.shard}" + (f", part {key.part + 1}" if key.part else "")
            where += f", phase {key.phase + 1}" if key.phase else ""
            losses = " and ".join(f"{number(loss):.6g}" for loss in line["losses"]) or "none"
            yield f"  {where}: loss {losses}, {len(samples)} samples: {_samples(samples, all_of_them=with_samples)}"
            if request.shard is not None:
                yield from _norms(_numbers(line["norms"]), "norm of this shard's gradient")
        for phase, norms in enumerate(recorded.norms(step)):
            yield from _norms(norms, "gradient norm" + (f", phase {phase + 1}" if phase else ""))


def _samples(samples: Sequence[Any], *, all_of_them: bool) -> str:
    if all_of_them or len(samples) <= _SHOWN_SAMPLES:
        return " ".join(map(str, samples))
    return f"{' '.join(map(str, samples[:_SHOWN_SAMPLES]))} ..."


def _norms(norms: Mapping[str, float], label: str) -> Iterator[str]:
    if not norms:
        return
    yield f"  {label}: {sum(norm * norm for norm in norms.values()) ** 0.5:.6g}"
    largest = sorted(norms, key=lambda name: -norms[name] if norms[name] == norms[name] else float("-inf"))
    width = max(map(len, largest[:_SHOWN_NORMS]))
    for name in largest[:_SHOWN_NORMS]:
        yield f"    {name:{width}}  {norms[name]:.6g}"
    if len(largest) > _SHOWN_NORMS:
        yield f"    and {len(largest) - _SHOWN_NORMS} smaller ones"
