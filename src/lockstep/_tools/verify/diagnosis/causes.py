"""The *likely* cause of a difference, from the experiments and the traces. Pure.

Causes are tried from certain to vague. Where two ranks ran one shard, nothing else matters. Where a
strategy does not promise bit-identical results, a difference in the reduced gradient needs no other
reason. Only then may chance explain it (a setting that differs from itself when it is run again),
then
loader workers (only their number differs between the settings), then the rank (ranks of one run
differ).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep._base.config import STRATEGIES
from lockstep._tools.verify.diagnosis.experiments import Findings
from lockstep._tools.verify.trace.differences import Difference


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A reason why runs differ."""

    sentence: str
    """The text that follows *likely cause:*"""
    remedy: str


CAUSES = {
    "worker": Cause(
        sentence="code that depends on which loader worker runs it",
        remedy="let a sample depend on its index only",
    ),
    "rank": Cause(
        sentence="code that depends on the rank",
        remedy="use team.rank, team.is_main and the variable RANK only for printing and writing",
    ),
    "not saved": Cause(
        sentence="a value that the script keeps is in no checkpoint, so a resume resets it",
        remedy="keep values in state = team.state(best=0.0, ...), count with team.step, and pass objects to "
        "team.register(name, object). These are saved, as are buffers of the model, optimizers, and team.per_shard(...)",
    ),
    "rounding": Cause(
        sentence="the order in which gradients are added depends on the number of processes (strategy ddp)",
        remedy="remove strategy=: the default, 'exact', adds in the same order on any number of processes",
    ),
    "chance": Cause(
        sentence="chance: the same setting, run again, computes something else. Candidates: the order of a set of strings "
        "(Python hashes them with a random seed), the time, a generator without a seed (os.urandom), or a nondeterministic "
        "kernel",
        remedy="iterate over sorted(the_set), seed every generator, and compute nothing from the time. "
        "torch.use_deterministic_algorithms(True) selects deterministic kernels, and raises an error where there is none",
    ),
    "unknown": Cause(
        sentence="not found",
        remedy="look at the first difference above, and at what it is computed from (docs/verify.md lists the usual causes by "
        "where a difference arose). The traces are in the results' directory",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The likely cause of a difference, for the user."""

    cause: str
    """A key of ``CAUSES``."""
    sentence: str
    remedy: str
    arose: str = ""
    """The part of the computation in which the difference arose, as text; empty: unknown."""


NOT_SAVED = Diagnosis(cause="not saved", **vars(CAUSES["not saved"]))
"""Why a run that resumes one that was killed computes something else, with the same settings."""


def conclude(findings: Findings) -> Diagnosis:
    """The likely cause."""
    name = _cause(findings)
    return Diagnosis(cause=name, **vars(CAUSES[name]), arose=_arose(findings.difference))


def _cause(findings: Findings) -> str:
    difference = findings.difference
    if difference.owners:
        return "unknown"
    if difference.stage == "gradient" and not STRATEGIES[findings.strategy].promises_bits:
        return "rounding"
    if findings.repeats is False:
        return "chance"
    first, second = findings.settings
    if difference.stage == "content" and first.world_size == second.world_size and first.workers != second.workers:
        return "worker"
    return "rank" if difference.among is not None else "unknown"


_AROSE: Mapping[str, str] = {
    "content": "while the samples were fetched and collated",
    "steps": "in the sampler, or in the arguments of the loader",
    "samples": "in the sampler, or in the arguments of the loader",
    "loss": "inside a shard, before the backward pass (its samples are the same)",
    "weight of a loss": "inside a shard, after the model (the loss is the same)",
    "gradient of a shard": "in the backward pass (the loss is the same)",
    "gradient": "where gradients are reduced (each shard's gradients are the same)",
    "evaluation": "in the evaluation (the weights are the same)",
}
"""The part of the computation for each stage that differs; any other arises in the update."""


def _arose(difference: Difference) -> str:
    if difference.is_behind:
        return "after the last step (until then everything is the same)"
    if difference.step == 0:
        return "before the first step"
    return _AROSE.get(difference.stage, "after batch.shards, in the update (the gradients are the same)")
