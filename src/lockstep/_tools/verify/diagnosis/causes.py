"""The *likely* cause of a difference: what the experiments say, and the traces. Pure."""

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
    """What is printed after *likely cause:*"""
    remedy: str


CAUSES = {
    "worker": Cause(
        sentence="code that depends on which loader worker runs it",
        remedy="let what a sample is depend on its index alone",
    ),
    "rank": Cause(
        sentence="rank-dependent code: what is computed depends on which process it is",
        remedy="use team.rank, team.is_main and the variable RANK for printing and writing only",
    ),
    "not saved": Cause(
        sentence="something that the script keeps is in no checkpoint, so the run resumes without it",
        remedy="keep values in state = team.state(best=0.0, ...), count with team.step, and give objects to "
        "team.register(name, object): these are saved, as are buffers of the model, optimizers, and team.per_shard(...)",
    ),
    "rounding": Cause(
        sentence="the sum of gradients is taken in an order that depends on the number of processes (strategy ddp)",
        remedy="leave strategy= out: the default, 'exact', adds in one order",
    ),
    "chance": Cause(
        sentence="a setting does not agree with itself when it is run again: the order of a set of texts (Python hashes them "
        "with a random seed), a clock, the system's randomness (os.urandom, a generator without a seed), or a kernel whose "
        "results depend on timing",
        remedy="iterate over sorted(the_set); let nothing that is computed depend on the time, and seed every generator; "
        "torch.use_deterministic_algorithms(True) makes PyTorch choose deterministic kernels, and name those that it "
        "lacks in an error",
    ),
    "unknown": Cause(
        sentence="not found",
        remedy="look at the first thing that differs, above, and at what it is computed from (docs/verify.md lists what "
        "usually makes a difference where it arose); the traces are in the results' directory",
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
    """In which part of the computation it arose, in words; empty: unknown."""


NOT_SAVED = Diagnosis(cause="not saved", **vars(CAUSES["not saved"]))
"""Why a run that resumes one that was killed computes something else, with the same settings."""


def conclude(findings: Findings) -> Diagnosis:
    """The likely cause."""
    name = _cause(findings)
    return Diagnosis(cause=name, **vars(CAUSES[name]), arose=_arose(findings.difference))


def _cause(findings: Findings) -> str:
    difference = findings.difference
    if difference.stage == "samples" and "ran this shard" in difference.detail:
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
    "steps": "in the sampler, or in what the loader was made with",
    "samples": "in the sampler, or in what the loader was made with",
    "loss": "inside a shard, before the backward pass: its samples are the same",
    "weight of a loss": "inside a shard, after the model: the loss is the same",
    "gradient of a shard": "in the backward pass: the loss is the same",
    "gradient": "where gradients are reduced: those of each shard are the same",
    "evaluation": "in the evaluation: the weights are the same",
}
"""By the stage that differs; any other arises in the update."""


def _arose(difference: Difference) -> str:
    if difference.is_behind:
        return "after the last step: until then all is the same"
    if difference.step == 0:
        return "before the first step"
    return _AROSE.get(difference.stage, "after batch.shards, in the update: the gradients are the same")
