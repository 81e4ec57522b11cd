"""Whether two traced runs computed the same, and if not, what differed first. Pure.

Within a step, things are compared in the order in which one causes the next: in each phase which samples, what was in their
batch, each shard's loss, each shard's gradients, the gradients after the exchange; then weights, buffers, the state of
optimizers. So the first difference is where to look for the cause.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.trace.lines import number
from lockstep.trace.traced_run import Line, ShardKey, TracedRun

STAGES = (
    "ranks",
    "steps",
    "samples",
    "content",
    "loss",
    "weight of a loss",
    "gradient of a shard",
    "gradient",
    "weights",
    "buffers",
    "state",
    "evaluation",
)
"""What can differ, in causal order."""
_SHOWN = 12  # hexadecimal digits of a digest that a person is shown


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first thing in which two runs, or the ranks of one, differ."""

    step: int
    """From 1; 0: before the first step."""
    stage: str
    """One of ``STAGES``."""
    phase: int | None = None
    """Which of the step's passes over its shards, from 0; None: it is about the step as a whole."""
    shard: int | None = None
    epoch: int | None = None
    """From 0."""
    name: str | None = None
    """Of the parameter, buffer, or entry of an optimizer's state."""
    samples: tuple[Any, ...] = ()
    """The identities of the shard's samples."""
    values: tuple[str, str] = ("", "")
    """What it was in the one and in the other."""
    among: tuple[str, str] | None = None
    """Which ranks of one run differ; None: two runs do."""
    detail: str = ""

    @property
    def order(self) -> tuple[float, ...]:
        """A sort key: what comes first in a run."""
        phase = math.inf if self.phase is None else self.phase
        return self.step, phase, STAGES.index(self.stage), self.shard or 0


# One run by itself


def first_fault(run: TracedRun) -> Difference | None:
    """What is first wrong with a run by itself; None: each shard was run once, no sample came twice, all ranks agree."""
    faults = [*_shared_work(run), *_samples_used_twice(run), *_ranks_that_differ(run)]
    return min(faults, key=lambda difference: difference.order, default=None)


def _shared_work(run: TracedRun) -> Iterator[Difference]:
    for key, owners in run.shards.items():
        if len(owners) > 1:
            ranks = ", ".join(str(rank) for rank, _ in owners)
            yield _at(key, "samples", detail=f"ranks {ranks} all ran this shard")
            return


def _samples_used_twice(run: TracedRun) -> Iterator[Difference]:
    """Only where the sampler says that it draws without replacement."""
    if any(line["replacement"] is not False for line in run.loaders):
        return
    for key, line, sample, before in _repeated(run):
        detail = f"sample {sample} was used in step {before.step}, shard {before.shard}, already"
        yield _at(key, "samples", epoch=line["epoch"], samples=(sample,), detail=detail)
        return


def _repeated(run: TracedRun) -> Iterator[tuple[ShardKey, Line, Any, ShardKey]]:
    """Samples that come twice in a pass, and where they came before. Of one loader: a second may begin anew in the middle
    of a pass over the first."""
    seen: dict[tuple[int, str], ShardKey] = {}
    for key, owners in sorted(run.shards.items()) if len(run.loaders) == 1 else ():
        line = owners[0][1]
        for sample in line["batches"][0]["samples"] if key.phase == 0 and line["batches"] else ():
            before = seen.setdefault((line["pass"], repr(sample)), key)
            if before != key:
                yield key, line, sample, before


def _ranks_that_differ(run: TracedRun) -> Iterator[Difference]:
    for lines in (run.initial, *run.steps.values()):
        for rank, line in enumerate(lines[1:], start=1):
            difference = _first_of_step(lines[0], line)
            if difference is not None:
                among = ("rank 0", f"rank {rank}")
                yield dataclasses.replace(difference, stage="ranks", among=among, detail=difference.stage)
                return


def uses_each_sample_once(run: TracedRun) -> bool | None:
    """Whether no pass used a sample twice; None: not known, as there are several loaders."""
    return next(_repeated(run), None) is None if len(run.loaders) == 1 else None


def learned(run: TracedRun) -> bool:
    """Whether any weight moved."""
    return not run.initial or dict(run.initial[0]["weights"]) != dict(run.last["weights"])


def _at(key: ShardKey, stage: str, **fields: Any) -> Difference:
    return Difference(step=key.step, phase=key.phase, shard=key.shard, stage=stage, **fields)


# Two runs


def first_difference(reference: TracedRun, run: TracedRun, *, until: int | None = None) -> Difference | None:
    """The first difference between two runs, up to a step; None: they computed the same, to the bit.

    ``run`` may have begun in a later step, as it resumed where an earlier launch was killed.
    """
    first = min(run.steps)
    before = reference.initial if first == 1 else reference.steps.get(first - 1, ())
    if before and run.initial and (difference := _first_of_step({**before[0], "gradients": ()}, run.initial[0])):
        return difference
    for step in sorted({*reference.steps, *run.steps}):
        if step < first:
            continue
        if until is not None and step > until:
            return None
        if step not in reference.steps or step not in run.steps:
            counts = (f"{reference.num_steps} steps", f"{run.num_steps} steps")
            return Difference(step=step, phase=0, stage="steps", values=counts)
        difference = min(
            filter(None, (_compare_shards(reference, run, step), _compare_step(reference, run, step))),
            key=lambda difference: difference.order,
            default=None,
        )
        difference = difference or _compare_evaluations(reference, run, step)
        if difference is not None:
            return difference
    return None


def _compare_shards(reference: TracedRun, run: TracedRun, step: int) -> Difference | None:
    mine = {key: owners[0][1] for key, owners in reference.shards_of(step)}
    theirs = {key: owners[0][1] for key, owners in run.shards_of(step)}
    differences = []
    if mine.keys() != theirs.keys():
        key = min(mine.keys() ^ theirs.keys())
        values = tuple("ran" if key in lines else "did not run" for lines in (mine, theirs))
        differences.append(_at(key, "samples", values=values))
    for key, line in mine.items():
        for stage, first_of in _OF_A_SHARD.items() if key in theirs else ():
            if (pair := first_of(line, theirs[key])) is not None:
                name, both = pair
                samples = tuple(line["batches"][0]["samples"]) if line["batches"] else ()
                differences.append(_at(key, stage, epoch=line["epoch"], name=name, values=both, samples=samples))
                break
    return min(differences, key=lambda difference: difference.order, default=None)


Pair = tuple[str | None, tuple[str, str]]
"""The name of what differs, and both values."""


def _samples(mine: Line, theirs: Line) -> Pair | None:
    pairs = zip(mine["batches"], theirs["batches"], strict=False)
    if len(mine["batches"]) != len(theirs["batches"]):
        return None, (f"{len(mine['batches'])} batches", f"{len(theirs['batches'])} batches")
    for batch, counterpart in pairs:
        if batch["samples"] != counterpart["samples"]:
            return None, (_list(batch["samples"]), _list(counterpart["samples"]))
    return None


def _content(mine: Line, theirs: Line) -> Pair | None:
    for batch, counterpart in zip(mine["batches"], theirs["batches"], strict=False):
        if batch["content"] != counterpart["content"]:
            return None, (f"digest {batch['content'][:_SHOWN]}", f"digest {counterpart['content'][:_SHOWN]}")
    return None


def _numbers(field: str, mine: Line, theirs: Line) -> Pair | None:
    if mine[field] == theirs[field]:
        return None
    texts = [" and ".join(_decimal(text) for text in line[field]) or "none" for line in (mine, theirs)]
    return None, (texts[0], texts[1])


def _shard_gradients(mine: Line, theirs: Line) -> Pair | None:
    return _first_digest(mine["gradients"], theirs["gradients"])


_OF_A_SHARD = {
    "samples": _samples,
    "content": _content,
    "loss": lambda mine, theirs: _numbers("losses", mine, theirs),
    "weight of a loss": lambda mine, theirs: _numbers("weights", mine, theirs),
    "gradient of a shard": _shard_gradients,
}


def _compare_step(reference: TracedRun, run: TracedRun, step: int) -> Difference | None:
    mine, theirs = reference.steps[step][0], run.steps[step][0]
    difference = _first_of_step(mine, theirs)
    if difference is not None and difference.stage == "gradient":
        norms = [line["norms"][difference.phase] for line in (mine, theirs)]
        if norms[0] != norms[1]:
            values = [f"{value}, norm of all {_decimal(norm)}" for value, norm in zip(difference.values, norms, strict=True)]
            return dataclasses.replace(difference, values=(values[0], values[1]))
    return difference


def _first_of_step(mine: Line, theirs: Line) -> Difference | None:
    """The first difference between two lines of one step, or of the beginning."""
    gradients = zip(mine.get("gradients", ()), theirs.get("gradients", ()), strict=False)
    digests: list[tuple[str, int | None, Mapping[str, str], Mapping[str, str]]] = [
        *(("gradient", phase, left, right) for phase, (left, right) in enumerate(gradients)),
        *((stage, None, mine[stage], theirs[stage]) for stage in ("weights", "buffers", "state")),
    ]
    for stage, phase, left, right in digests:
        if (pair := _first_digest(left, right)) is not None:
            return Difference(
                step=mine.get("step", 0), phase=phase, stage=stage, epoch=mine.get("epoch"), name=pair[0], values=pair[1]
            )
    return None


def _first_digest(mine: Mapping[str, str], theirs: Mapping[str, str]) -> Pair | None:
    for name in (*mine, *(name for name in theirs if name not in mine)):
        if mine.get(name) != theirs.get(name):
            return name, (_shown(mine.get(name)), _shown(theirs.get(name)))
    return None


def _shown(value: str | None) -> str:
    if value is None:
        return "none"
    return value[1:] if value.startswith("=") else f"digest {value[:_SHOWN]}"


def _compare_evaluations(reference: TracedRun, run: TracedRun, step: int) -> Difference | None:
    mine, theirs = ([line for line in each.evaluations if line["step"] == step] for each in (reference, run))
    if len(mine) != len(theirs):
        # A run that was ended after this step had no time to evaluate.
        if step == max(reference.steps) or step == max(run.steps):
            return None
        return Difference(step=step, stage="evaluation", values=(f"{len(mine)} evaluations", f"{len(theirs)} evaluations"))
    for line, counterpart in zip(mine, theirs, strict=True):
        for name in line["values"]:
            first, second = line["values"][name], counterpart["values"].get(name)
            if first != second:
                values = (_decimal(first), _decimal(second) if second else "none")
                return Difference(step=step, stage="evaluation", epoch=line["epoch"], name=name, values=values)
    return None


def _decimal(text: str | None) -> str:
    return "by sample count" if text is None else repr(number(text))


def _list(samples: Sequence[Any]) -> str:
    shown = ", ".join(str(sample) for sample in samples[:8])
    return f"{shown}, ... ({len(samples)} in all)" if len(samples) > 8 else shown or "none"


# Where in the step it arose


@dataclass(frozen=True, kw_only=True)
class Origin:
    """In which part of the computation a difference arose, from runs that recorded their layers."""

    where: str
    """``data``, ``before the model``, ``layer``, ``after the model``, ``backward``, ``exchange``, ``update``, ``beginning``,
    ``evaluation``, ``samples`` or ``unknown``."""
    layer: str | None = None
    kind: str | None = None
    """The class of the layer."""


def origin(difference: Difference, reference: TracedRun | None, run: TracedRun | None) -> Origin:
    """Where the difference arose. The runs are those with layers; None, or equal: what the difference itself tells."""
    by_stage = {
        "ranks": "update",
        "steps": "samples",
        "samples": "samples",
        "content": "data",
        "loss": "unknown",
        "weight of a loss": "after the model",
        "gradient of a shard": "backward",
        "gradient": "exchange",
        "evaluation": "evaluation",
    }
    where = "beginning" if difference.step == 0 else by_stage.get(difference.stage, "update")
    if where != "unknown" or reference is None or run is None:
        return Origin(where=where)
    again = first_difference(reference, run)
    if again is None or again.stage != "loss":
        return Origin(where="unknown")
    for key, owners in reference.shards_of(again.step):
        if (key.phase, key.shard) != (again.phase, again.shard) or key not in run.shards:
            continue
        mine, theirs = owners[0][1].get("layers", []), run.shards[key][0][1].get("layers", [])
        return _first_layer(mine, theirs)
    return Origin(where="unknown")


def _first_layer(mine: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]]) -> Origin:
    if not mine or not theirs:
        return Origin(where="unknown")
    if [layer[0] for layer in mine] != [layer[0] for layer in theirs]:
        return Origin(where="before the model")  # not even the same layers ran
    # They stand in the order in which they ended: the first that made a difference from equal inputs is the innermost.
    for layer, counterpart in zip(mine, theirs, strict=True):
        if layer[2] == counterpart[2] and layer[3] != counterpart[3]:
            return Origin(where="layer", layer=layer[0], kind=layer[1])
    is_equal = all(layer[3] == counterpart[3] for layer, counterpart in zip(mine, theirs, strict=True))
    return Origin(where="after the model" if is_equal else "before the model")
