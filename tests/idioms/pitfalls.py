"""Writes docs/pitfalls.md from the table: python tests/idioms/pitfalls.py."""

import re
from pathlib import Path

from table import FOUND, TABLE, Documented, Equal, Refused

PAGE = Path(__file__).parents[2] / "docs" / "pitfalls.md"
HEAD = """\
# Pitfalls: what is refused, what differs, and what is proven equal

<!-- Written by tests/idioms/pitfalls.py from tests/idioms/table.py: change the table, and run it. -->

The rule: **inside `batch.shards` a process sees its own shards; outside, every process does the same with the same numbers.**
Values leave the inner loop through `team.backward`, `batch.add`, `team.per_shard`, buffers, or, outside, a collective.

How far the [contract](contract.md) goes: {num_scripts} ordinary training idioms, each linked to its script and run by a test.

| scripts | outcome |
|---|---|
| {num_equal} | **equal to the bit** on 1 to 4 processes with 4 shards, and on 1 and 4 with 6, on every rank |
| {num_plain} of these | † with one process and one shard, also equal to the same loop without lockstep |
| {num_carried} of these | § not after a resume, unless what the finding names is in a checkpoint ([LS2..](check.md)) |
| {num_refused} | **refused** |
| {num_documented} | run and **differ** |

An idiom that differs without an error and is not listed here is a bug. Below, *inside* and *outside* mean `batch.shards`."""
REFUSED_HEAD = """
## What is refused

Each with an error that says what to write instead. ‡: only other processes can tell, so one process alone runs it.
"""
DOCUMENTED_HEAD = """
## What runs and differs

**Written inside, read outside**: any tensor, list, dict, counter or object of the script that is written inside and read
later, outside or by the next shard, holds what the shards of this process left in it. [`lockstep check`](check.md) finds it,
with the line to write instead, and a run warns of it when it starts. In each of these it finds the code named:
"""
EQUAL_HEAD = """
## What is proven equal
"""


def page():
    """The page's text."""
    rows = [row for rows in TABLE.values() for row in rows]
    equal = [row for row in rows if isinstance(row.promise, Equal)]
    refused = [row for row in rows if isinstance(row.promise, Refused)]
    documented = [row for row in rows if isinstance(row.promise, Documented)]
    lines = [
        HEAD.format(
            num_scripts=len(rows),
            num_equal=len(equal),
            num_plain=sum(row.promise.plain for row in equal),
            num_carried=sum(starts_anew(row) for row in equal),
            num_refused=len(refused),
            num_documented=len(documented),
        ),
        REFUSED_HEAD,
    ]
    for group, of_group in TABLE.items():
        named = ", ".join(link(row) + "‡" * (not row.promise.alone) for row in of_group if isinstance(row.promise, Refused))
        if named:
            lines.append(f"- {group}: {named}")
    lines.append(DOCUMENTED_HEAD)
    for row in documented:
        lines.append(f"- {link(row)}" + (f": {FOUND[row.name]}" if row.name in FOUND else f". {row.promise.why}"))
    lines.append(EQUAL_HEAD)
    for group, of_group in TABLE.items():
        proven = [row for row in of_group if isinstance(row.promise, Equal)]
        if proven:
            lines += [f"### {group[0].upper()}{group[1:]}", ""]
            lines += [",\n".join(f"{link(row)}{'†' * row.promise.plain}{'§' * starts_anew(row)}" for row in proven), ""]
    return "\n".join(lines).rstrip() + "\n"


def starts_anew(row):
    """Whether the script hands something on from step to step that no checkpoint holds."""
    return "LS2" in FOUND.get(row.name, "").replace("?", "")


def link(row):
    """What the script does, without its article, with the way to it."""
    return f"[{re.sub('^(an?|the) ', '', row.what)}](../tests/idioms/scripts/{row.name}.py)"


if __name__ == "__main__":
    PAGE.write_text(page())
