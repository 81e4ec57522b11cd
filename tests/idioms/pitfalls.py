"""Writes docs/pitfalls.md and docs/idioms.md from the table: python tests/idioms/pitfalls.py."""

import re
from pathlib import Path

from table import PITFALLS, ROWS, TABLE, TOPICS
from topics.promises import Differs, Equal, Refused

DOCS = Path(__file__).parents[2] / "docs"
CHECK = "check.md"
WRITTEN = "<!-- Written by tests/idioms/pitfalls.py from tests/idioms/topics/ and table.py: change those, and run it. -->"
PITFALLS_HEAD = f"""\
# Pitfalls: the ten that matter

{WRITTEN}

**Inside `batch.shards` a process sees its own shards; outside, every process does the same with the same numbers.** Values
leave the inner loop through `team.backward`, `batch.add`, `team.per_shard`, buffers, or, outside, a collective. Nearly all
pitfalls break this rule. Below, *inside* and *outside* mean `batch.shards`.

| | you write | what is wrong | write instead | what happens |
|---|---|---|---|---|"""
PITFALLS_MIDDLE = f"""
[`lockstep check train.py`]({CHECK}) finds most of these by reading the script, with the
line to write instead, and a run warns of them when it starts. [`lockstep verify train.py`](verify.md) shows whether the answer
is the same.

## What runs and differs

These idioms run without an error, and give a different answer on another number of processes. `check` finds each by the code
named. In general: **any tensor, list, dict, counter or object that is written inside and read later**, outside or by the next
shard, holds what the shards of this process left in it.
"""
PITFALLS_TAIL = """
## Everything else

Of {num_idioms} ordinary idioms that are tested, {num_equal} are equal to the bit on any number of processes,
{num_refused} are refused with an error that says what to write instead, and {num_documented} differ, as listed above:
[all of them, by topic](idioms.md). What the contract leaves open besides: [where it ends](contract.md#where-it-ends).
"""
IDIOMS_HEAD = """\
# All idioms, tested

{written}

How far the [contract](contract.md) goes: {num_idioms} ordinary training idioms, each linked to its function and run by a test.
The model, the data and the step that they share are in [shared.py](../tests/idioms/topics/shared.py). *Inside* and *outside*
mean `batch.shards`.

| idioms | outcome |
|---|---|
| {num_equal} | **equal to the bit** on 1 to 4 processes with 4 shards, and on 1 and 4 with 6, on every rank |
| {num_plain} of these | † with one process and one shard, also equal to the same loop without lockstep |
| {num_carried} of these | § not after a resume, unless what the finding names is in a checkpoint ([LS2..]({check})) |
| {num_refused} | **refused** with an error that says what to write instead. ‡: not by one process alone |
| {num_documented} | run and **differ**: [pitfalls](pitfalls.md#what-runs-and-differs) |

An idiom that differs without an error and is not listed here is a bug.
"""


def pitfalls():
    """The text of docs/pitfalls.md."""
    lines = [PITFALLS_HEAD]
    for number, pitfall in enumerate(PITFALLS, 1):
        rows = [row for name in pitfall.names for row in ROWS if row.name == name]
        shown = ", ".join(f"[{letter}]({place(row)})" for letter, row in zip("abcd", rows, strict=False))
        [outcome] = {outcome_of(row) for row in rows}
        lines.append(f"| {number} | {pitfall.written} | {pitfall.why} | {pitfall.instead} | {outcome}: {shown} |")
    lines.append(PITFALLS_MIDDLE)
    for row in of_kind(Differs):
        lines.append(f"- {link(row)}" + (f": {row.found}" if row.found else f". {row.promise.why}"))
    lines.append(PITFALLS_TAIL.format(**counts()))
    return "\n".join(lines)


def idioms():
    """The text of docs/idioms.md."""
    lines = [IDIOMS_HEAD.format(written=WRITTEN, check=CHECK, **counts())]
    for name, rows in TABLE.items():
        lines.append(f"## {TOPICS[name].__doc__.removesuffix('.')}\n")
        for kind, outcome in ((Equal, "Equal"), (Refused, "Refused"), (Differs, "Differ")):
            if named := [f"{link(row)}{marks(row)}" for row in of_kind(kind, rows)]:
                lines.append(f"**{outcome}**: " + ",\n".join(named) + "\n")
    return "\n".join(lines)


def of_kind(kind, rows=ROWS):
    return [row for row in rows if isinstance(row.promise, kind)]


def counts():
    equal = of_kind(Equal)
    return {
        "num_idioms": len(ROWS),
        "num_equal": len(equal),
        "num_plain": sum(row.promise.plain for row in equal),
        "num_carried": sum(starts_over(row) for row in equal),
        "num_refused": len(of_kind(Refused)),
        "num_documented": len(of_kind(Differs)),
    }


def outcome_of(row):
    """What a user sees of a pitfall."""
    if isinstance(row.promise, Equal):
        return "differs after a resume"
    return "differs" if isinstance(row.promise, Differs) else "refused"


def marks(row):
    if isinstance(row.promise, Equal):
        return "†" * row.promise.plain + "§" * starts_over(row)
    return "‡" * (isinstance(row.promise, Refused) and not row.promise.alone)


def starts_over(row):
    """Whether it carries something from step to step that no checkpoint holds."""
    return "LS2" in row.found


def link(row):
    """What the idiom does, without its article, with the way to it."""
    what = re.sub("^(An?|The) ", "", row.what)
    return f"[{what[0].upper()}{what[1:]}]({place(row)})"


def place(row):
    """Where its function begins."""
    return f"../tests/idioms/topics/{row.topic}.py#L{row.line}"


PAGES = {DOCS / "pitfalls.md": pitfalls, DOCS / "idioms.md": idioms}

if __name__ == "__main__":
    for page, text in PAGES.items():
        page.write_text(text())
