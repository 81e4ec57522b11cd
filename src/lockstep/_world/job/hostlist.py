"""Parsing Slurm's lists of hosts and counts: ``a[1-3,07-09],b`` and ``4(x2),1``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator


def expand_hosts(text: str) -> list[str]:
    """The hosts in a list, in order: ``n[08-10,1],login`` is n08, n09, n10, n1, login.

    Several brackets in one name multiply: ``r[1-2]n[1-2]`` is r1n1, r1n2, r2n1, r2n2.

    Raises:
        ValueError: the text has another form.
    """
    hosts: list[str] = []
    for item in _split(text):
        # Parts with odd numbers were in brackets.
        parts = re.split(r"\[([^\[\]]*)\]", item)
        if any(set(part) & set("[]") for part in parts[::2]):
            raise ValueError(f"{item!r}: brackets that do not match")
        choices = [list(_expand_ranges(part)) if index % 2 else [part] for index, part in enumerate(parts)]
        for names in itertools.product(*choices):
            hosts.append("".join(names))
    return hosts


def expand_counts(text: str) -> list[int]:
    """The numbers in a list with repetitions, such as tasks per node: ``2(x3),1`` is 2, 2, 2, 1.

    Raises:
        ValueError: the text has another form.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item.strip())
        if match is None:
            raise ValueError(f"{item!r} is not a number, or a number with how often it comes, as 4(x2)")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _split(text: str) -> Iterator[str]:
    """Splits at commas outside of brackets."""
    for item in re.split(r",(?![^\[\]]*\])", text):
        if not item.strip():
            raise ValueError(f"{text!r}: a name is missing")
        yield item.strip()


def _expand_ranges(text: str) -> Iterator[str]:
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        if match is None:
            raise ValueError(f"[{text}]: {item!r} is not a number or a range of numbers")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"[{text}]: {item!r} is no range")
        # Slurm pads the first number to the width of the names: 08-10 is 08, 09, 10, and 8-10 is 8,
        # 9, 10.
        yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
