"""Experiments that tell the causes of a difference apart: the script is run again, up to the step of the difference."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lockstep.tools.verify.diagnosis.setting import Setting
from lockstep.tools.verify.trace.differences import Difference, first_difference, first_fault
from lockstep.tools.verify.trace.origin import Origin, origin
from lockstep.tools.verify.trace.traced_run import TracedRun

_HASH_SEEDS = (1, 2, 3, 4)
"""Several, since half of all seeds give a set of two strings the same order."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Another run with a setting, up to the step of the difference."""

    purpose: str
    """What the user is told while it runs."""
    setting: Setting
    level: str
    """How much to trace: see ``TraceOptions``."""
    until: int | None
    hash_seed: int | None = None
    """The seed of Python's hashes, which determines the order of sets; None: another one in every run."""


Laboratory = Callable[[Experiment], TracedRun | None]
"""Runs an experiment; returns None if it failed."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What is known about a difference."""

    difference: Difference
    settings: tuple[Setting, Setting]
    strategy: str
    repeats: bool | None = None
    """Whether each setting gives the same result when it is run again; None: unknown."""
    depends_on_hashes: bool | None = None
    """Whether the result depends on the seed of Python's hashes, and on nothing else that was observed; None: unknown."""
    vanished: bool | None = None
    """Whether the difference disappeared with the same hash seed for both; None: unknown."""
    threads: tuple[int, int] | None = None
    """The numbers of threads where they first differ; None: they do not."""
    data_by_rank: bool = False
    """Whether rank 0 read the same data with both settings, and the other ranks never did."""
    origin: Origin = dataclasses.field(default_factory=lambda: Origin(where="unknown"))


def investigate(
    difference: Difference, reference: tuple[Setting, TracedRun], deviating: tuple[Setting, TracedRun], run: Laboratory
) -> Findings:
    """Run the experiments that tell causes apart. If one fails, less is known."""
    until = None if difference.is_behind else max(difference.step, 1) + (difference.stage == "evaluation")
    ask = functools.partial(Experiment, until=until)
    pairs = dict((reference, deviating)).items()
    purpose = "does it agree with itself?"
    again = ((before, ask(purpose=purpose, setting=setting, level="steps")) for setting, before in pairs)
    differs_again = _any_differs(again, run)
    purpose = "which layer is it?"
    traced = [run(ask(purpose=purpose, setting=setting, level="layers", hash_seed=0)) for setting, _ in pairs]
    runs = [each for each in traced if each is not None]
    vanished, depends_on_hashes = _has_vanished(runs, until, difference), None
    if vanished:  # the same hash seed has given the same result: does another one give another?
        question = ask(purpose="does the order of a set matter?", setting=reference[0], level="steps")
        seeded = ((runs[0], dataclasses.replace(question, hash_seed=hash_seed)) for hash_seed in _HASH_SEEDS)
        depends_on_hashes = _any_differs(seeded, run)
    return Findings(
        difference=difference,
        settings=(reference[0], deviating[0]),
        strategy=deviating[1].start["strategy"],
        repeats=None if differs_again is None else not differs_again,
        depends_on_hashes=depends_on_hashes,
        vanished=vanished,
        threads=_threads_that_differ(reference[1], deviating[1], difference),
        data_by_rank=difference.stage == "content" and _is_by_rank(reference[1], deviating[1]),
        origin=origin(difference, *(runs if len(runs) == 2 else (None, None))),
    )


def _any_differs(pairs: Iterable[tuple[TracedRun, Experiment]], run: Laboratory) -> bool | None:
    """Whether an experiment computes something other than the run it is paired with; None: all of them failed."""
    known = False
    for before, experiment in pairs:
        again = run(experiment)
        known = known or again is not None
        if again is not None and first_difference(before, again, until=experiment.until) is not None:
            return True
    return False if known else None


def _has_vanished(runs: Sequence[TracedRun], until: int | None, difference: Difference) -> bool | None:
    if difference.stage == "ranks":
        return first_fault(runs[-1]) is None if runs else None
    return first_difference(runs[0], runs[1], until=until) is None if len(runs) == 2 else None


def _threads_that_differ(reference: TracedRun, deviating: TracedRun, difference: Difference) -> tuple[int, int] | None:
    for key, owners in sorted(reference.shards.items()):
        if key.step > max(difference.step, 1) or key not in deviating.shards:
            continue
        numbers = owners[0][1]["threads"], deviating.shards[key][0][1]["threads"]
        if None not in numbers and numbers[0] != numbers[1]:
            return numbers
    return None


def _is_by_rank(reference: TracedRun, deviating: TracedRun) -> bool:
    """Whether rank 0 read the same data as the reference, and the other ranks never did. (A single step does not tell: a
    generator that no process has drawn from yet gives all of them the same.)"""
    equal_by_rank: dict[bool, set[bool]] = {True: set(), False: set()}
    for key, ((rank, line), *_) in deviating.shards.items():
        if key in reference.shards:
            counterpart = reference.shards[key][0][1]
            contents = [[batch["content"] for batch in each["batches"]] for each in (line, counterpart)]
            equal_by_rank[rank == 0].add(contents[0] == contents[1])
    return min(reference.num_steps, deviating.num_steps) > 1 and equal_by_rank == {True: {True}, False: {False}}
