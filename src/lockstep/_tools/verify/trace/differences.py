"""Whether two runs computed the same, and if not, what differed first. Pure.

Traces and digest journals are compared by the same functions, line by line. Within a step, values
are compared in causal order (``STAGES``), so the first difference is where to look for the cause;
everything after it differs as a consequence::

    step 7   phase 0   shard 0   samples > content > loss > weight > gradient of a shard
                       shard 1   ...
                       (exchange)                                 > gradient
             phase 1   ...
             update                                                 > number > weights > buffers > state
             evaluation                                                                             > evaluation

*number* comes before *weights*: an entry of an optimizer's state that is a plain number, such as a
learning rate, is usually the reason why weights differ. *ranks* comes first: where the ranks of one
run disagree, a comparison with another run shows nothing.

A trace has everything of every step. A digest journal has samples and losses of all steps, and
gradients and state of some, so only what both records have is compared (``is_whole=False``).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lockstep._tools.verify.trace.lines import number
from lockstep._tools.verify.trace.traced_run import Line, ShardKey, TracedRun

STAGES = (
    "ranks",
    "steps",
    "samples",
    "content",
    "loss",
    "weight of a loss",
    "gradient of a shard",
    "gradient",
    "number",
    "weights",
    "buffers",
    "state",
    "evaluation",
)
"""The properties that can differ, in causal order."""
_WORDS = {
    "steps": "the number of steps",
    "samples": "the samples",
    "content": "the content of the batch",
    "gradient of a shard": "the shard's gradient of",
    "gradient": "the gradient (after the exchange) of",
    "number": "the value of",
    "weights": "the weight",
    "buffers": "the buffer",
    "state": "the state:",
    "evaluation": "the evaluation's",
}
"""The names of stages for the user; any other stage has its own name."""
_SHOWN = 12
"""The number of hexadecimal digits that are shown of a digest with more than ``_SHORT``."""
_SHORT = 16


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first difference between two runs, or between the ranks of one."""

    step: int
    """The number of the step, from 1; 0: before the first step."""
    is_behind: bool = False
    """Whether the difference arose after this step, the last one, before the script finished."""
    stage: str
    """One of ``STAGES``."""
    phase: int | None = None
    """The phase of the step, from 0; None: it concerns the step as a whole."""
    shard: int | None = None
    epoch: int | None = None
    """The number of the epoch, from 0."""
    name: str | None = None
    """The name of the parameter, buffer, or entry of an optimizer's state."""
    samples: tuple[Any, ...] = ()
    """The identities of the shard's samples."""
    values: tuple[str, str] = ("", "")
    """The value in the first and in the second run."""
    among: tuple[str, str] | None = None
    """The ranks of one run that differ; None: two runs differ."""
    owners: tuple[int, ...] = ()
    """The ranks that ran one shard; empty: no shard was run twice."""
    detail: str = ""

    @property
    def order(self) -> tuple[float, ...]:
        """A sort key: earlier in a run is smaller."""
        phase = math.inf if self.phase is None else self.phase
        return self.step, self.is_behind, phase, STAGES.index(self.stage), self.shard or 0

    @property
    def place(self) -> str:
        """The place in the run, and the property that differs, as text."""
        where = "the beginning" if self.step == 0 else f"step {self.step}"
        where = f"after {where}, the last" if self.is_behind else where
        if self.epoch is not None:
            where += f" (epoch {self.epoch + 1})"
        if self.phase:  # nearly every step has but one, which needs no name
            where += f", phase {self.phase + 1}"
        if self.shard is not None:
            where += f", shard {self.shard}"
        stage = self.detail if self.stage == "ranks" else self.stage
        what = _WORDS.get(stage, stage)
        return f"{where}: {what} {self.name}" if self.name else f"{where}: {what.removesuffix(' of')}"

    @property
    def pair(self) -> str:
        """Both values, as text."""
        return f"{self.values[0]} vs {self.values[1]}"


# A single run


def first_fault(run: TracedRun) -> Difference | None:
    """The first fault of a single run; None: each shard ran once, no sample was used twice, and all
    ranks agree."""
    faults = [*_shared_work(run), *_samples_used_twice(run), *_ranks_that_differ(run)]
    return min(faults, key=lambda difference: difference.order, default=None)


def _shared_work(run: TracedRun) -> Iterator[Difference]:
    for key, owners in run.shards.items():
        if len(owners) > 1:
            ranks = tuple(rank for rank, _ in owners)
            words = ", ".join(map(str, ranks))
            yield _at(key, "samples", owners=ranks, detail=f"ranks {words} ran the same shard")
            return


def _samples_used_twice(run: TracedRun) -> Iterator[Difference]:
    """Only if all samplers are known to draw without replacement."""
    if any(line["replacement"] is not False for line in run.loaders):
        return
    for key, line, sample, before in _repeated(run):
        detail = f"sample {sample} was already used in step {before.step}, shard {before.shard}"
        yield _at(key, "samples", epoch=line["epoch"], samples=(sample,), detail=detail)
        return


def _repeated(run: TracedRun) -> Iterator[tuple[ShardKey, Line, Any, ShardKey]]:
    """Samples used twice in a pass, with their earlier use. Only for a single loader, since a
    second may restart in the middle of a pass over the first."""
    seen: dict[tuple[int, str], ShardKey] = {}
    for key, owners in sorted(run.shards.items()) if len(run.loaders) == 1 else ():
        line = owners[0][1]
        for sample in line["batches"][0]["samples"] if key.phase == 0 and line["batches"] else ():
            use = line["pass"], repr(sample)
            if use in seen:  # perhaps in the same shard
                yield key, line, sample, seen[use]
            seen[use] = key


def _ranks_that_differ(run: TracedRun) -> Iterator[Difference]:
    for lines in (run.initial, *run.steps.values()):
        for line in lines[1:]:
            for difference in in_step(lines[0], line):
                among = (f"rank {lines[0]['rank']}", f"rank {line['rank']}")
                yield dataclasses.replace(difference, stage="ranks", among=among, detail=difference.stage)
                return


def uses_each_sample_once(run: TracedRun) -> bool | None:
    """Whether no pass used a sample twice; None: unknown, since there are several loaders."""
    return next(_repeated(run), None) is None if len(run.loaders) == 1 else None


def learned(run: TracedRun) -> bool:
    """Whether any weight changed. Of a resumed run only the last steps are known, which may change
    none, so it counts as having learned."""
    is_whole = min(run.steps) == 1 and bool(run.initial)
    return not is_whole or dict(run.initial[0]["weights"]) != dict(run.last["weights"])


def _at(key: ShardKey, stage: str, **fields: Any) -> Difference:
    return Difference(step=key.step, phase=key.phase, shard=key.shard, stage=stage, **fields)


# Two runs


class Record(Protocol):
    """The record of a run's steps: a trace, or a digest journal, which has less, and of fewer
    steps."""

    @property
    def steps(self) -> Mapping[int, tuple[Line, ...]]:
        """The lines about gradients and state after a step, for each step."""

    @property
    def evaluations(self) -> Sequence[Line]:
        """The lines about evaluations, in order."""

    def numbers(self) -> Collection[int]:
        """The steps of which anything was recorded."""

    def shards_of(self, step: int) -> list[tuple[ShardKey, tuple[tuple[int, Line], ...]]]:
        """The micro-batches of a step, in order, with the ranks that ran them and their lines."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of a comparison."""

    steps: tuple[int, ...]
    """Steps whose shards were compared, up to the first difference."""
    states: tuple[int, ...]
    """Steps after which gradients and state were compared, and are equal."""
    difference: Difference | None
    """The first difference; None: there is none in these steps."""

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to compare."""
        return not self.steps and not self.states


def compare(
    first: Record,
    second: Record,
    steps: range | None = None,
    *,
    tolerance: float | None = None,
    is_whole: bool = False,
) -> Comparison:
    """Compare two runs step by step, up to the first that differs.

    Args:
        first: what was recorded of one run.
        second: of another.
        steps: the steps to compare; None: all.
        tolerance: the relative difference up to which losses count as equal; gradients and states
            are then not compared. None: all must be bit-identical.
        is_whole: whether both have all, so that what only one has is a difference. If not, what
            both have is compared.
    """
    numbers = {*first.numbers()}, {*second.numbers()}
    compared, states = list[int](), list[int]()
    for step in sorted(numbers[0] | numbers[1] if is_whole else numbers[0] & numbers[1]):
        if steps is not None and step not in steps:
            continue
        if not (step in numbers[0] and step in numbers[1]):
            counts = (f"{len(first.steps)} steps", f"{len(second.steps)} steps")
            difference = Difference(step=step, phase=0, stage="steps", values=counts)
            return Comparison(steps=tuple(compared), states=tuple(states), difference=difference)
        mine, theirs = (_first_owners(record, step) for record in (first, second))
        compared += [step] if mine.keys() & theirs.keys() else []
        differences = list(_in_shards(mine, theirs, tolerance, is_whole=is_whole))
        has_state = tolerance is None and step in first.steps and step in second.steps
        if has_state:
            differences += in_step(first.steps[step][0], second.steps[step][0], is_whole=is_whole)
        if differences or (differences := list(_in_evaluations(first, second, step))):
            difference = min(differences, key=lambda difference: difference.order)
            return Comparison(steps=tuple(compared), states=tuple(states), difference=difference)
        states += [step] if has_state else []
    return Comparison(steps=tuple(compared), states=tuple(states), difference=None)


def first_difference(reference: TracedRun, run: TracedRun, *, until: int | None = None) -> Difference | None:
    """The first difference between two traced runs, up to a step; None: they are bit-identical.

    ``run`` may begin with a later step, at which it resumed an earlier launch.
    """
    first = min(run.steps)
    before = reference.initial if first == 1 else reference.steps.get(first - 1, ())
    if before and run.initial and (differences := in_step({**before[0], "gradients": ()}, run.initial[0])):
        return differences[0]
    if first == 1 and (differences := list(_in_evaluations(reference, run, 0))):
        return differences[0]
    last = max(*reference.steps, *run.steps) if until is None else until
    difference = compare(reference, run, range(first, last + 1), is_whole=True).difference
    return difference if difference is not None or until is not None else next(_behind(reference, run), None)


def _behind(reference: TracedRun, run: TracedRun) -> Iterator[Difference]:
    """Differences in what the scripts did after their last step."""
    if reference.end is not None and run.end is not None and "weights" in reference.end and "weights" in run.end:
        yield from _in_numbers(reference, run, run.last["step"], is_behind=True)
        for difference in in_step(reference.end, run.end):
            yield dataclasses.replace(difference, is_behind=True)


Pair = tuple[str, str]
"""A value in the first and in the second run, as text."""


def _first_owners(record: Record, step: int) -> dict[ShardKey, Line]:
    return {key: owners[0][1] for key, owners in record.shards_of(step)}


def _in_shards(
    mine: Mapping[ShardKey, Line], theirs: Mapping[ShardKey, Line], tolerance: float | None, *, is_whole: bool
) -> Iterator[Difference]:
    """Differences between the micro-batches of a step, in causal order."""
    if is_whole and mine.keys() != theirs.keys():
        key = min(mine.keys() ^ theirs.keys())
        words = ["ran" if key in lines else "did not run" for lines in (mine, theirs)]
        yield _at(key, "samples", values=(words[0], words[1]))
    for key in [key for key in mine if key in theirs]:
        line = mine[key]
        samples = line["batches"][0]["samples"] if line["batches"] else ()
        pair = (line, theirs[key]) if is_whole else _up_to_nan(line, theirs[key])
        for stage, name, values in _in_shard(*pair, tolerance):
            difference = _at(key, stage, name=name, values=values, epoch=line.get("epoch"))
            yield difference if isinstance(samples, str) else dataclasses.replace(difference, samples=tuple(samples))


def _up_to_nan(mine: Line, theirs: Line) -> tuple[Line, Line]:
    """A shard in two digest journals; if a NaN ended one run in it, without the losses behind
    that."""
    first, second = sorted((mine["losses"], theirs["losses"]), key=len)
    if len(first) == len(second) or first[-1:] != ["nan"]:
        return mine, theirs
    cut = slice(len(first))
    return {**mine, "losses": mine["losses"][cut]}, {**theirs, "losses": theirs["losses"][cut]}


def _in_shard(mine: Line, theirs: Line, tolerance: float | None) -> Iterator[tuple[str, str | None, Pair]]:
    if len(mine["batches"]) != len(theirs["batches"]):
        yield "samples", None, (f"{len(mine['batches'])} batches", f"{len(theirs['batches'])} batches")
    for left, right in zip(mine["batches"], theirs["batches"], strict=False):
        if left["samples"] != right["samples"]:
            yield "samples", None, (_list(left["samples"]), _list(right["samples"]))
        if None not in (left["content"], right["content"]) and left["content"] != right["content"]:
            yield "content", None, (_shown(left["content"]), _shown(right["content"]))
    for stage, field, near in (("loss", "losses", tolerance), ("weight of a loss", "weights", None)):
        if not _are_equal(mine[field], theirs[field], near):
            yield stage, None, (_decimals(mine[field]), _decimals(theirs[field]))
    for name, values in _in_digests(mine["gradients"], theirs["gradients"]):
        yield "gradient of a shard", name, values


def _are_equal(first: Sequence[Any], second: Sequence[Any], tolerance: float | None) -> bool:
    if first == second or tolerance is None or len(first) != len(second):
        return first == second
    pairs = [(number(a), number(b)) for a, b in zip(first, second, strict=True)]
    return all(math.isclose(a, b, rel_tol=tolerance) or (a != a and b != b) for a, b in pairs)


def in_step(mine: Line, theirs: Line, *, is_whole: bool = True) -> list[Difference]:
    """Differences between two lines of one step, of the beginning or of the end, in causal
    order."""
    found = (_with_norms(difference, mine, theirs) for difference in _in_lines(mine, theirs, is_whole=is_whole))
    return sorted(found, key=lambda difference: difference.order)


def _in_lines(mine: Line, theirs: Line, *, is_whole: bool) -> Iterator[Difference]:
    at = functools.partial(Difference, step=mine.get("step", 0), epoch=mine.get("epoch"))
    for phase, (left, right) in enumerate(zip(mine.get("gradients", ()), theirs.get("gradients", ()), strict=False)):
        for name, values in _in_digests(left, right):
            yield at(phase=phase, stage="gradient", name=name, values=values)
    for stage in ("weights", "buffers", "state"):
        for name, values in _in_digests(mine[stage], theirs[stage]):
            if not is_whole and not (name in mine[stage] and name in theirs[stage]):
                continue
            # A plain number says more than a digest, and sorts before weights: a learning rate that
            # differs is why they do.
            is_number = all(line[stage].get(name, "").startswith("=") for line in (mine, theirs))
            yield at(stage="number" if is_number else stage, name=name, values=values)


def _with_norms(difference: Difference, mine: Line, theirs: Line) -> Difference:
    """A difference between gradients, with their norms if these differ, too."""
    if difference.phase is None:
        return difference
    norms = [line["norms"][difference.phase] for line in (mine, theirs)]
    if norms[0] == norms[1]:
        return difference
    values = [f"{value}, norm of all {_decimal(norm)}" for value, norm in zip(difference.values, norms, strict=True)]
    return dataclasses.replace(difference, values=(values[0], values[1]))


def differing_names(mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> Iterator[Any]:
    """The names whose values differ, or that only one has, in their order."""
    return (name for name in dict.fromkeys((*mine, *theirs)) if mine.get(name) != theirs.get(name))


def _in_digests(mine: Mapping[Any, str], theirs: Mapping[Any, str]) -> Iterator[tuple[Any, Pair]]:
    return ((name, (_shown(mine.get(name)), _shown(theirs.get(name)))) for name in differing_names(mine, theirs))


def _in_evaluations(reference: Record, run: Record, step: int) -> Iterator[Difference]:
    yield from _in_numbers(reference, run, step)
    for left, right in zip(_evaluations_after(reference, step), _evaluations_after(run, step), strict=False):
        for name in differing_names(left["values"], right["values"]):
            values = [_decimal(line["values"][name]) if name in line["values"] else "none" for line in (left, right)]
            yield Difference(step=step, stage="evaluation", epoch=left["epoch"], name=name, values=(values[0], values[1]))


def _in_numbers(reference: Record, run: Record, step: int, *, is_behind: bool = False) -> Iterator[Difference]:
    """Differences in how often the scripts evaluated after a step; ``is_behind``: after the last,
    and both have finished."""
    numbers = [len(_evaluations_after(record, step)) for record in (reference, run)]
    # A run that ended after this step may have had no time to evaluate.
    if numbers[0] != numbers[1] and (is_behind or step not in (max(reference.steps), max(run.steps))):
        values = f"{numbers[0]} evaluations", f"{numbers[1]} evaluations"
        yield Difference(step=step, stage="evaluation", is_behind=is_behind, values=values)


def _evaluations_after(record: Record, step: int) -> list[Line]:
    return [line for line in record.evaluations if line["step"] == step]


def _shown(value: str | None) -> str:
    if value is None:
        return "none"
    if value.startswith("="):
        return value[1:]
    return f"digest {value if len(value) <= _SHORT else value[:_SHOWN]}"


def _decimal(text: str | None) -> str:
    return "by sample count" if text is None else repr(number(text))


def _decimals(texts: Sequence[str | None]) -> str:
    return " and ".join(map(_decimal, texts)) or "none"


def _list(samples: Sequence[Any]) -> str:
    if isinstance(samples, str):
        return _shown(samples)
    shown = ", ".join(str(sample) for sample in samples[:8])
    return f"{shown}, ... ({len(samples)} in all)" if len(samples) > 8 else shown or "none"
