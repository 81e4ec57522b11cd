"""Which rank is wrong, given several computations of one shard. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep._tools.audit.gradient_sums import Sums
from lockstep._tools.verify.trace.differences import differing_names


@dataclass(frozen=True, kw_only=True)
class Computed:
    """One rank's result for the audited shard."""

    rank: int
    where: str
    """The host and device of the rank."""
    sums: Sums


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of an audit in which results differ."""

    step: int
    phase: int
    shard: int
    parameter: str
    """The first parameter in the order of the backward pass whose gradient differs; or the loss."""
    wrong: tuple[int, ...]
    """The wrong rank; several if one of them is wrong and it is unknown which; empty if the results
    do not show that a rank is wrong."""
    where: tuple[str, ...]
    """The hosts and devices of these ranks."""
    code: str
    """The kind of result: ``wrong``, ``wrong-once``, ``not-repeated`` (one rank's results differ
    from each other) or ``not-repeatable`` (all ranks' do)."""
    summary: str
    text: str

    @property
    def headline(self) -> str:
        """A short summary."""
        return f"step {self.step}, shard {self.shard}, {self.parameter}: {self.summary}"

    def as_json(self) -> dict[str, object]:
        """For the run's event log."""
        return {
            "step": self.step,
            "phase": self.phase,
            "shard": self.shard,
            "parameter": self.parameter,
            "ranks": list(self.wrong),
            "where": list(self.where),
            "text": self.text,
        }


_SAVED = (
    "The step is discarded, and nothing is saved after it. Steps since the previous audit may also be wrong: `lockstep "
    "replay RUN --step N` on another machine shows whether step N was correct"
)
_UNLIKE = (
    "so the shard's result depends on more than its weights, samples and random stream: on a nondeterministic kernel, a "
    "random generator of the script, or a value that the shard loop carries from one shard to the next (team.per_shard keeps "
    "one for each)"
)
_ONCE = (
    "The cause is a flipped bit or a nondeterministic kernel; torch.use_deterministic_algorithms(True) rules out the latter"
)


def judge(first: Computed, second: Computed, again: Sequence[Computed], position: tuple[int, int, int]) -> Verdict:
    """Which rank is wrong.

    A rank is accused if all others agree, and it either repeats its own result or agrees with them
    the second time. One whose results all differ is named, but not accused: kernels that are not
    deterministic look the same.

    Args:
        first: the owner's result, which would have counted.
        second: the auditor's, which differs.
        again: both ranks' second results, and a third rank's where there is one; or the only rank's
            third.
        position: the step, its phase, and the shard.
    """
    step, phase, shard = position
    parameter = first_difference(first.sums, second.sums)
    what = "the loss" if parameter.startswith("the loss") else f"the gradient of {parameter}"

    def verdict(code: str, wrong: Sequence[Computed], summary: str, text: str) -> Verdict:
        return Verdict(
            step=step,
            phase=phase,
            shard=shard,
            parameter=parameter,
            wrong=tuple(computed.rank for computed in wrong),
            where=tuple(computed.where for computed in wrong),
            code=code,
            summary=summary,
            text=f"audit of step {step}, shard {shard}{f', phase {phase + 1}' if phase else ''}: {text}. {_SAVED}.",
        )

    if first.rank == second.rank:
        name = _name(first)
        if again[0].sums not in (first.sums, second.sums):
            return verdict(
                "not-repeatable",
                [],
                "a different result each time",
                f"{name} computed {what} three times, with three results, {_UNLIKE}",
            )
        text = f"{name} was WRONG once: it computed {what} three times, and once with a different result. {_ONCE}"
        return verdict("wrong-once", [first], f"{name} was wrong once", text)
    for suspect, right in ((first, second), (second, first)):
        peers = [computed for computed in again if computed.rank != suspect.rank]
        if any(computed.sums != right.sums for computed in peers):
            continue
        name, differs = _name(suspect), f"{what} differs from that of {_names([right, *peers])}"
        repeated = next(computed.sums for computed in again if computed.rank == suspect.rank)
        if repeated == right.sums:
            text = f"{name} was WRONG once: {differs}, but not the second time. {_ONCE}"
            return verdict("wrong-once", [suspect], f"{name} was wrong once", text)
        if repeated != suspect.sums:
            text = f"{name} does not repeat its result: {differs}, and from its own the second time, {_UNLIKE}"
            return verdict(
                "not-repeated", [], f"{name} does not repeat its result", f"{text}; or its machine fails at random"
            )
        if len(peers) > 1:
            text = f"{name} is WRONG: {differs}, also when all ranks compute it again"
            return verdict("wrong", [suspect], f"{name} is wrong", text)
        either = f"{_name(first)} or {_name(second)}"
        text = f"{either} is WRONG: they differ in {what}, each twice. A third rank could identify it: use"
        return verdict("wrong", [first, second], f"{either} is wrong", f"{text} three processes or more")
    text = f"{what} differs, and its results do not agree when it is computed again, on {_names([first, second, *again])}"
    return verdict("not-repeatable", [], "a different result each time", f"{text}, {_UNLIKE}")


def first_difference(first: Sums, second: Sums) -> str:
    """The first name, in the order of the backward pass, whose sums differ or that only one of them
    has."""
    return next(differing_names(first, second), "nothing")


def _names(results: Sequence[Computed]) -> str:
    return " and ".join({computed.rank: _name(computed) for computed in results}.values())


def _name(computed: Computed) -> str:
    return f"rank {computed.rank} ({computed.where})"
