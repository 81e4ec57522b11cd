"""The decision at the end of a round: whether the nodes start a new rendezvous, and the message for
the user. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep._base.stopping import INTERRUPTED_STATUS, REQUEUE_STATUS
from lockstep._launch import failures, restarts
from lockstep._launch.elastic.places import Machine
from lockstep._launch.elastic.round import Report
from lockstep._launch.failures import Failure

_RESUMES = "To resume from the newest checkpoint (of a script that calls lockstep.join()), repeat the command on all nodes"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The decision: the same on every node that has the same reports."""

    continues: bool
    """Whether the nodes start a new rendezvous."""
    counts: bool
    """Whether that uses one of the allowed restarts."""
    text: str
    """The message for the user from the reporting node."""
    brief: str
    """The message from each of the other nodes, which do not repeat the whole report."""
    status: int
    """The exit status of the launchers, if they end."""
    code: str
    """Why the round ended, as ``LockstepError.code``: ``saved``, ``stopped``, ``node-joined``,
    ``node-left``, ``node-lost``, ``restart``, ``restarts-used`` or ``would-recur``."""
    stopped_with: int | None = None
    """The exit status of a run that was asked to stop, and saved itself or could not: no
    failure."""
    reporter: int
    """The number of the reporting node."""


def judge(
    reports: Mapping[int, Report], machines: Sequence[Machine], *, least: int, is_elastic: bool, used: int, max_restarts: int
) -> Verdict:
    """Decides.

    Args:
        reports: of the nodes that were not lost, by number.
        machines: all nodes of the round, by number.
        least: number of nodes that the run needs.
        is_elastic: whether the run can continue without some of them.
        used: number of restarts after failures so far.
        max_restarts: maximum number of them.
    """
    world_size = sum(machine.num_ranks for machine in machines)
    lost = [machine for number, machine in enumerate(machines) if number not in reports]
    reported = _in_order(reports)
    # Consequences alone (distance 2) say only that another rank was lost, not why.
    has_cause = any(failure.distance < 2 for failure in reported)
    stopped = [number for number, report in reports.items() if report.signal]
    joins = any(report.joins for report in reports.values())
    remaining = [number for number in reports if number not in stopped]
    # Computed from the reports, so that all nodes agree on it without a message. A node that was
    # stopped does not report for the others if one remains: its launcher may be about to exit.
    reporter = min(remaining or reports)

    def end(text: str, status: int, brief: str = "", *, code: str) -> Verdict:
        return Verdict(
            continues=False, counts=False, text=text, brief=brief or text, status=status, code=code, reporter=reporter
        )

    def again(text: str, brief: str = "", *, counts: bool = False, code: str) -> Verdict:
        return Verdict(continues=True, counts=counts, text=text, brief=brief or text, status=0, code=code, reporter=reporter)

    statuses = [report.stopped_with for report in reports.values() if report.stopped_with]
    if statuses and not has_cause:
        hosts = ", ".join(machines[number].host for number in stopped)
        # The others can continue if they are enough, and their store does not leave with its
        # keeper.
        stay = len(reports) - len(stopped) >= least and not any(machines[node].keeps_store for node in stopped)
        text, continues, code = (
            f"stopped on {hosts or 'no machine, but by a signal to a process'}: all nodes exit",
            False,
            "saved",
        )
        if joins and not stopped:
            text, continues, code = "a node joined: restarting all workers", True, "node-joined"
        elif is_elastic and stopped and stay and set(statuses) <= {REQUEUE_STATUS, INTERRUPTED_STATUS}:
            text, continues = f"checkpoint saved, and {hosts} leaves: the other nodes join a new rendezvous", True
            code = "node-left"
        # UNSAVED_STATUS (74) is less than REQUEUE_STATUS (75) and INTERRUPTED_STATUS (130): if any
        # node could not save, that is the result.
        status = min(statuses)
        return Verdict(
            continues=continues,
            counts=False,
            text=text,
            brief=text,
            status=status,
            code=code,
            stopped_with=status,
            reporter=reporter,
        )
    if stopped and not has_cause:
        host, number = machines[stopped[0]].host, reports[stopped[0]].signal
        if not is_elastic:
            how = " (Ctrl-C)" if number == signal.SIGINT else ""
            return end(f"stopped by signal {number}{how} on {host} without saving. {_RESUMES}", 128 + number, code="stopped")
        if any(machines[node].keeps_store for node in stopped):
            return end(f"stopped by signal {number} on {host}: {without_store(host)}", 128 + number, code="stopped")
        return again(f"{host} was stopped and leaves: the other nodes join a new rendezvous", code="node-left")
    if joins and not has_cause:
        return again("a node joined: restarting all workers", code="node-joined")
    # With no failure and no lost node, a node was silent for long enough to end the round, and has
    # reported after all.
    whole = brief = _lost_words(lost) or "a node that was silent for too long is back"
    # Next to a lost node, mere consequences explain nothing: the loss is the cause.
    if reported and (has_cause or not lost):
        first = reported[0]
        whole = failures.report(reported, world_size) + (f"\n\n{_lost_words(lost)}" if lost else "")
        brief = failures.headline(first, world_size)
        brief += f" (the launcher on {machines[reporter].host} shows all)"
    elif lost and is_elastic:
        return again(f"{whole}: the other nodes join a new rendezvous", code="node-lost")
    status = (reported[0].exit_status or 1) if reported else 1
    if has_cause and reported[0].would_recur:
        return end(whole + restarts.why_not(reported[0], max_restarts), status, brief, code="would-recur")
    if lost and not is_elastic:
        return end(whole if has_cause else f"{whole}. {_RESUMES}", status, brief, code="node-lost")
    if any(report.signal for report in reports.values()) and not is_elastic:
        return end(whole, status, brief, code="stopped")  # a node was stopped, and would be missing
    if used >= max_restarts:
        return end(whole + restarts.why_not(None, max_restarts), status, brief, code="restarts-used")
    count = f"restart {used + 1} of {max_restarts}: all nodes join a new rendezvous"
    return again(f"{whole}\n\nlockstep: {count}", f"{brief}; {count}", counts=True, code="restart")


def _in_order(reports: Mapping[int, Report]) -> list[Failure]:
    """The failures, the cause first. Consequences come last. Before them come failures with a known
    waiting rank, then failures of the node that announced the end, then the rest by the clocks of
    their nodes."""
    ordered = [
        (failure.distance, not failure.waited, not report.is_first, failure)
        for report in reports.values()
        for failure in report.failures
    ]
    return [failure for *_, failure in sorted(ordered, key=lambda key: (*key[:3], key[3].time_s))]


def _lost_words(lost: Sequence[Machine]) -> str:
    if not lost:
        return ""
    hosts = ", ".join(f"{machine.host} ({machine.ranks})" for machine in lost)
    return f"lost contact with {hosts} (machine, network or launcher failed)"


def without_store(host: str) -> str:
    """What follows from the loss of the machine that keeps the launchers' store, for the user."""
    return (
        "it kept the rendezvous store, so all processes on this machine were stopped. When "
        f"{host} is back, or with another machine instead, repeat the command on all nodes: a "
        "script that calls lockstep.join() resumes from its newest checkpoint"
    )
