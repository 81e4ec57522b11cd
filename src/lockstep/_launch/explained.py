"""The failures of a launch, with what its observers know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lockstep._base.observers import Observers
from lockstep._launch import failures
from lockstep._launch.failures import End, Failure
from lockstep._launch.observer import Observer


class ExplainedFailures:
    """The failures of this machine's ranks, explained by ``observers``."""

    def __init__(self, observers: Observers[Observer]) -> None:
        self.by_rank: dict[int, Failure] = {}
        self._observers = observers

    @property
    def are_consequences(self) -> bool:
        """Whether all ranks that have failed so far seem to have done so only because others did
        not take part."""
        return all(map(failures.lacked_peers, self.by_rank.values()))

    def add(self, failure: Failure, *, was_reported: bool) -> None:
        """Adds one as soon as it is known: black boxes show what the others, for which the rank
        waited, do now.

        ``was_reported``: whether the worker itself has reported it.
        """
        self.by_rank[failure.rank] = failure
        if failure.then:
            return
        if failures.lacked_peers(failure):
            if not (failures.timed_out(failure) or failures.has_aborted(failure)):
                return  # others are gone, and nothing is told by where those were that still wait
            echoes = [rank for rank, known in self.by_rank.items() if failures.lacked_peers(known)]
            waited = self._observers.ask(lambda observer: observer.who_waits(echoes))
            self.by_rank[failure.rank] = replace(failure, waited=waited or "")
            return
        failure = self._observers.ask(lambda observer: observer.with_cause(failure)) or failure
        was_killed = not was_reported and failure.exit_status > 128 and not failure.text and not failure.is_of_all
        last_seen = self._observers.ask(lambda observer: observer.last_seen(failure.rank)) if was_killed else None
        remark = "\n\n".join(filter(None, (failure.remark, last_seen)))
        self.by_rank[failure.rank] = replace(failure, remark=remark)

    def in_order(self, ends: Mapping[int, End], without_failure: Mapping[int, End], num_ranks: int) -> tuple[Failure, ...]:
        """The failures, the cause first: also one that only the whole shows. For the arguments see
        ``failures.early_end``."""
        reported = failures.in_order(list(self.by_rank.values()))
        is_consequence = bool(reported) and self.are_consequences and not any(failure.then for failure in reported)
        early = failures.early_end(reported, ends, without_failure, num_ranks)
        if early is not None:
            return (early, *reported)
        if is_consequence and (mismatch := self._observers.ask(lambda observer: observer.mismatch(reported))):
            reported[0] = replace(reported[0], waited=mismatch)
        elif is_consequence:  # others may have failed first, of those that timed out
            reported[0] = replace(reported[0], waited=next(filter(None, (failure.waited for failure in reported)), ""))
        return tuple(reported)
