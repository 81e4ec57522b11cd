"""Which rank of a script is slow, and at which function: from samples of the main threads
(``time_samples``), since lockstep does not know the parts of the script's steps.

A rank is slow in a function if it spends far more of its time there than any other rank, in nearly
every step, while all others wait for about as long. Samples are few and machines are shared, so
all of this must be true in two blocks in a row, and time in which the rank had no processor does
not count. Reading and writing files is judged separately: it need not be in every step::

    share of samples       rank 0   rank 1
    draw_picture             2 %     65 %    excess 63 %: rank 1 is slow here, if ...
    waiting in all_reduce   70 %      6 %    ... rank 0 waits longer by most of that (64 %)
    the rest                28 %     29 %

Pure, except for the memory of what was reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep._base.reports import SLOW, Report
from lockstep._tools.explain.time_samples import BLOCK_S, Block, Place
from lockstep._world.machine.sizes import counted, name_ranks

_LEAST_SHARE, _LEAST_OF_BLOCK = 0.25, 0.15
"""The shares of its time that a slow rank spends in a function beyond any other rank: in both
blocks together, and in each."""
_LEAST_GAIN = 0.6
"""The share of that excess by which every other rank waits longer than the slow one."""
_LEAST_SAMPLES, _LEAST_STEPS = 30, 5
"""The least numbers of samples and steps in a block. Steps longer than two seconds are not
judged."""
_MOST_LONGER = 1.25
"""The most samples of the function in one step, as a multiple of an average step's samples: an
evaluation has many more."""
_LEAST_MORE, _NEARLY = 1.3, 0.8
"""The least ratio of a caller's time to that of the function it calls, from which the caller is
named instead; and the share of the largest excess that counts as equal to it."""
_LEAST_OF_FILES = 0.5
"""The share of its time that a rank loses reading and writing files at one line."""
_LEAST_VISITS = 3

Function = tuple[str, str]
"""The file and the name of a function."""


@dataclass(frozen=True)
class Finding:
    """Ranks that are slow at one place."""

    ranks: tuple[int, ...]
    place: Place
    """The place of the first of the ranks."""
    share: float
    """The share of that rank's time that is spent there."""
    others: float
    """The largest share that another rank spends there."""
    seconds: float
    """The duration of the samples, in seconds."""
    visits: int = 0
    """The number of calls that read or write files; 0: the finding is about another function."""

    @property
    def cause(self) -> str:
        """The cause as one stable word."""
        return "storage" if self.visits else self.place["doing"].split()[-1]

    def report(self, host: str) -> Report:
        """The report for the user."""
        at, call = location(self.place), self.place["call"]
        names, verb = name_ranks(self.ranks), "loses" if len(self.ranks) == 1 else "lose"
        if self.visits:
            text = (
                f"{names} on {host} {verb} time reading or writing files: {self.share * self.seconds:.0f} s of the last "
                f"{self.seconds:.0f} s, in {counted(self.visits, 'call')} of {call} at {at}. All ranks wait for it. Check the "
                "disk or file system; read or write less, less often, or in another thread."
            )
        else:
            text = (
                f"{names} on {host} is slow: it spends {self.share:.0%} of its time at {at}{f' ({call})' if call else ''}, "
                f"{self.place['doing']}. No other rank spends more than {self.others:.0%} there, and all wait for it. Check "
                "what only it does there."
            )
        places = dict.fromkeys(self.ranks, at)
        return Report(kind=SLOW, text=text, ranks=self.ranks, cause=self.cause, places=places, seconds=self.seconds)


class SlowScripts:
    """Finds what is slow in the records of one launch, and each thing once."""

    def __init__(self) -> None:
        self._told: set[tuple[int, Function]] = set()
        self._judged = -1
        """The number of the newest block that was judged."""

    def look(self, records: Sequence[Mapping[str, Any]], *, are_scripts: bool) -> list[Report]:
        """What to report now.

        Args:
            records: the newest of all ranks that are known.
            are_scripts: whether they use no lockstep, which else knows which rank is slow by the
                times of its phases.
        """
        blocks = {int(record["rank"]): record.get("spent", []) for record in records}
        newest = min((own[-1]["number"] if own else -1 for own in blocks.values()), default=-1)
        if newest <= self._judged:
            return []
        self._judged = newest
        findings = [*_in_files(blocks), *([found] if are_scripts and (found := slow_rank(blocks, newest)) else [])]
        hosts = {int(record["rank"]): str(record["host"]) for record in records}
        reports = []
        for found in findings:
            new = {(rank, _function(found.place)) for rank in found.ranks} - self._told
            self._told |= new
            if new:
                reports.append(found.report(hosts[found.ranks[0]]))
        return reports


def slow_rank(blocks: Mapping[int, Sequence[Block]], newest: int) -> Finding | None:
    """The rank that the others wait for, and where it spends the time, in this block and the last;
    None: there is none."""
    pairs = {rank: [block for block in own if block["number"] in (newest - 1, newest)] for rank, own in blocks.items()}
    if len(pairs) < 2 or not all(len(pair) == 2 and _may_be_judged(pair) for pair in pairs.values()):
        return None
    done = [block["done"] - block["begun"] for pair in pairs.values() for block in pair]
    if min(done) < 0.8 * max(done) or max(done) == 0:
        return None  # they do not go on together
    for rank, own in pairs.items():
        others = [pair for peer, pair in pairs.items() if peer != rank]
        function = next((each for each in _by_function(own) if _is_slow_in(each, own, others)), None)
        own_whole, others_whole = _with_callees(own), [_with_callees(peer) for peer in others]
        if (whole := _slow_as_a_whole(own_whole, others_whole)) is not None and (
            function is None or _share(own_whole, whole) >= _LEAST_MORE * _share(own, function)
        ):
            function, own, others = whole, own_whole, others_whole
        if function is not None:
            most = max(_share(peer, function) for peer in others)
            return Finding((rank,), _most_seen(own, function), _share(own, function), most, BLOCK_S * len(own))
    return None


def _with_callees(blocks: Sequence[Block]) -> list[Block]:
    """The blocks, with the time in the functions that a function calls counted for it as well."""
    return [{**block, "places": block["functions"]} for block in blocks]


def _slow_as_a_whole(own: Sequence[Block], others: Sequence[Sequence[Block]]) -> Function | None:
    """The innermost function in which a rank spends nearly all of what it spends more than others,
    whether at its own lines or at lines of functions that it calls; None: there is none. (What
    calls it has as much of that, or more.)"""
    slow = {
        function: _share(own, function) - max(_share(peer, function) for peer in others)
        for function in _by_function(own)
        if _is_slow_in(function, own, others)
    }
    near = [function for function, excess in slow.items() if excess >= _NEARLY * max(slow.values())]
    return min(near, key=lambda function: _share(own, function), default=None)


def line_of(rank: int, records: Sequence[Mapping[str, Any]]) -> str:
    """The line at which a rank that is known to be slow spends its time, more than others; empty:
    none stands out.

    ``records``: the newest of that rank and others.
    """
    blocks = {int(record["rank"]): [*record.get("spent", [])[-1:], record["spent_now"]] for record in records}
    blocks = {each: kept for each, own in blocks.items() if (kept := [block for block in own if block["count"]])}
    if rank not in blocks or len(blocks) < 2:
        return ""
    own = blocks.pop(rank)
    excess = {
        function: _share(own, function) - max(_share(peer, function) for peer in blocks.values())
        for function in _by_function(own)
    }
    if not excess or max(excess.values()) < _LEAST_OF_BLOCK:
        return ""
    return location(_most_seen(own, max(excess, key=excess.__getitem__)))


def _most_seen(blocks: Sequence[Block], function: Function) -> Place:
    """The line of a function that was seen most."""
    places = [place for block in blocks for place in block["places"] if _function(place) == function]
    lines: Counter[int] = Counter()
    for place in places:
        lines[place["line"]] += place["count"]
    [(line, _)] = lines.most_common(1)
    return next(place for place in places if place["line"] == line)


def _is_slow_in(function: Function, own: Sequence[Block], others: Sequence[Sequence[Block]]) -> bool:
    starved = max(block["starved"] for block in own)
    for blocks, least in ((own, _LEAST_SHARE), *(([block], _LEAST_OF_BLOCK) for block in own)):
        numbers = [block["number"] for block in blocks]
        same = [[block for block in peer if block["number"] in numbers] for peer in others]
        excess = _share(blocks, function) - max(_share(peer, function) for peer in same) - starved
        if excess < least or not _is_in_each_step(function, blocks):
            return False
        visited = _by_function(blocks)
        if any(_gain(blocks, peer, visited) < _LEAST_GAIN * excess for peer in same):
            return False
    return True


def _gain(own: Sequence[Block], peer: Sequence[Block], visited: Counter[Function]) -> float:
    """The share of its time by which a peer may wait longer than this rank: where ranks wait for
    each other, or in functions that this rank calls as well (``loss.item()`` waits for a GPU)."""
    waits = _waiting(peer) - _waiting(own)
    return max(0.0, waits) + sum(max(0.0, _share(peer, function) - _share(own, function)) for function in visited)


def _is_in_each_step(function: Function, blocks: Sequence[Block]) -> bool:
    """Whether the time there is spread over the steps, and does not belong to a few steps that
    evaluate, save, or compile."""
    count = sum(place["count"] for block in blocks for place in block["places"] if _function(place) == function)
    # The lines of a function may be seen in the same step, or not: at least as often as the one
    # that is seen most.
    visits = sum(
        max(place["visits"] for place in block["places"] if _function(place) == function)
        for block in blocks
        if any(_function(place) == function for place in block["places"])
    )
    per_step = sum(block["count"] for block in blocks) / sum(block["steps"] for block in blocks)
    return visits >= _LEAST_STEPS and count / visits <= _MOST_LONGER * max(1.0, per_step)


def _in_files(blocks: Mapping[int, Sequence[Block]]) -> list[Finding]:
    """The ranks that lose most of their time in reading and writing files, by function."""
    found: dict[Function, list[Finding]] = {}
    for rank, own in sorted(blocks.items()):
        places = [place for block in own for place in block["places"] if place["call"]]
        if not places or len(own) < 2:
            continue
        most = max(places, key=lambda place: sum(each["count"] for each in places if _function(each) == _function(place)))
        at = [place for place in places if _function(place) == _function(most)]
        share = sum(place["count"] for place in at) / sum(block["count"] for block in own)
        visits = sum(place["visits"] for place in at)
        waits = share - sum(block["computed"] for block in own) / len(own)
        if share >= _LEAST_OF_FILES and waits >= _LEAST_SHARE and visits >= _LEAST_VISITS:
            finding = Finding((rank,), most, share, 0.0, BLOCK_S * len(own), visits)
            found.setdefault(_function(most), []).append(finding)
    return [replace(same[0], ranks=tuple(each.ranks[0] for each in same)) for same in found.values()]


def _may_be_judged(blocks: Sequence[Block]) -> bool:
    return all(block["count"] >= _LEAST_SAMPLES and block["steps"] >= _LEAST_STEPS for block in blocks)


def _by_function(blocks: Sequence[Block]) -> Counter[Function]:
    counts: Counter[Function] = Counter()
    for block in blocks:
        for place in block["places"]:
            counts[_function(place)] += place["count"]
    return counts


def _share(blocks: Sequence[Block], function: Function) -> float:
    return _by_function(blocks)[function] / sum(block["count"] for block in blocks)


def _waiting(blocks: Sequence[Block]) -> float:
    return sum(block["waiting"] for block in blocks) / sum(block["count"] for block in blocks)


def _function(place: Place) -> Function:
    return place["file"], place["function"]


def location(place: Place) -> str:
    """A place as ``FILE:LINE in FUNCTION``."""
    return f"{place['file']}:{place['line']} in {place['function']}"
