"""Which rank is wrong, given several computations of one shard. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.audit.gradient_sums import Sums


@dataclass(frozen=True, kw_only=True)
class Computed:
    """One rank's result for the audited shard."""

    rank: int
    where: str
    """Its host and device."""
    sums: Sums


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of an audit in which results differ."""

    step: int
    phase: int
    shard: int
    parameter: str
    """The first, in the order of the backward pass, whose gradient differs; or the loss."""
    wrong: tuple[int, ...]
    """The wrong rank; several if it is one of them and cannot be narrowed down; empty if every computation differs."""
    where: tuple[str, ...]
    """Their hosts and devices."""
    text: str

    @property
    def headline(self) -> str:
        """A short summary."""
        ranks = " or ".join(f"rank {rank} ({where})" for rank, where in zip(self.wrong, self.where, strict=True))
        what = f"{ranks} is wrong" if ranks else "another each time"
        return f"step {self.step}, shard {self.shard}, {self.parameter}: {what}"

    def as_json(self) -> dict[str, object]:
        """For the run's journal."""
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
    "The step is discarded, and nothing is saved after it. Steps since the audit before may be wrong as well: `lockstep replay "
    "RUN --step N` on another machine says whether step N was what it should have been"
)
_UNLIKE = (
    "so what the shard computes does not depend on its weights, samples and random stream alone. Kernels that are not "
    "deterministic do that, a generator of the script's own, or a value that the loop over batch.shards carries from one shard "
    "to the next (team.per_shard keeps one for each)"
)


def judge(first: Computed, second: Computed, again: Sequence[Computed], position: tuple[int, int, int]) -> Verdict:
    """Which rank is wrong.

    Args:
        first: the owner's result, which would have counted.
        second: the auditor's, which differs.
        again: a third rank's; without a third rank, both ranks' second results, or the only rank's third.
        position: the step, its phase, and the shard.
    """
    step, phase, shard = position
    parameter = first_difference(first.sums, second.sums)

    def verdict(wrong: Sequence[Computed], text: str) -> Verdict:
        return Verdict(
            step=step,
            phase=phase,
            shard=shard,
            parameter=parameter,
            wrong=tuple(computed.rank for computed in wrong),
            where=tuple(computed.where for computed in wrong),
            text=f"audit of step {step}, shard {shard}{f', phase {phase + 1}' if phase else ''}: {text}. {_SAVED}.",
        )

    what = "the loss" if parameter.startswith("the loss") else f"the gradient of {parameter}"
    agree_on_second = all(computed.sums == second.sums for computed in again)
    agree_on_first = all(computed.sums == first.sums for computed in again)
    if first.rank == second.rank:
        if not agree_on_first and not agree_on_second:
            return verdict([], f"{_name(first)} computed {what} three times, with three results, {_UNLIKE}")
        return verdict([first], f"{_name(first)} is WRONG: it computed {what} three times, and once with another result")
    if agree_on_first or agree_on_second:
        wrong, right = (first, second) if agree_on_second else (second, first)
        third = [computed for computed in again if computed.rank not in (wrong.rank, right.rank)]
        if third:
            return verdict([wrong], f"{_name(wrong)} is WRONG: {what} is another on {_name(right)} and {_name(third[0])}")
        return verdict([wrong], f"{_name(wrong)} is WRONG: {what} is another on {_name(right)}, and there too a second time")
    sums_before = {first.rank: first.sums, second.rank: second.sums}
    if all(sums_before.get(computed.rank) == computed.sums for computed in again):
        return verdict(
            [first, second],
            f"{_name(first)} or {_name(second)} is WRONG: they differ in {what}, each twice. Only a third could say which one: "
            "start the run with three processes or more",
        )
    by_rank = {computed.rank: computed for computed in (first, second, *again)}
    ranks = ", ".join(map(_name, by_rank.values()))
    return verdict([], f"{what} was another each time it was computed, on {ranks}, {_UNLIKE}")


def first_difference(first: Sums, second: Sums) -> str:
    """The first name, in the order of the backward pass, whose sums differ or that only one of them has."""
    return next(name for name in (*first, *second) if first.get(name) != second.get(name))


def _name(computed: Computed) -> str:
    return f"rank {computed.rank} ({computed.where})"
