"""Writes docs/pitfalls.md and docs/idioms.md from the table: python tests/idioms/pitfalls.py."""

import re
from pathlib import Path

from table import PITFALLS, ROWS, TABLE, TOPICS
from topics.promises import Differs, Equal, Refused

DOCS = Path(__file__).parents[2] / "docs"
CHECK = "check.md"
CARRIED = "check-codes.md#ls2-starts-over-after-a-resume"
DIFFERENT = "pitfalls.md#idioms-that-give-different-results"
WRITTEN = "<!-- Written by tests/idioms/pitfalls.py from tests/idioms/topics/ and table.py: change those, and run it. -->"
PITFALLS_HEAD = f"""\
# Ten common mistakes

{WRITTEN}

This page lists the mistakes that people make most often in a training loop. Read it before you
write or port a loop. To find most of them in a script:

```
lockstep check train.py
```

All follow from one rule. **Inside the shard loop** (`for ... in batch.shards`) a process sees only
its own shards. **Outside the shard loop** every process does the same with the same numbers. Values
leave the shard loop through `team.backward`, `batch.add`, `team.per_shard`, buffers, or, outside, a
collective. (A **shard** is a [numbered part of the global batch](contract.md#shards).)

| | you write | what is wrong | write instead | result |
|---|---|---|---|---|"""
PITFALLS_MIDDLE = f"""
- **Differs**: results depend on the number of processes. **Refused**: an error that contains the
  line to write instead. The letters link to tests that show it.
- [`lockstep check train.py`]({CHECK}) finds most of these by reading the script, and prints the
  line to write instead. A run warns of them when it starts.
- [`lockstep verify train.py`](verify.md) shows whether results are bit-identical.

## Idioms that give different results

These run without an error, and give different results on another number of processes. The code is
that of [`check`](check-codes.md). In general, **any tensor, list, dict, counter or object that is
written inside and read later**, outside or by the next shard, contains what the shards of this
process left in it.

| idiom | code | why, and what to write instead |
|---|---|---|"""
PITFALLS_TAIL = """
## All other idioms

Of {num_idioms} ordinary idioms that are tested, {num_equal} are bit-identical on any number of
processes, {num_refused} are refused with an error that contains the line to write instead, and
{num_documented} differ, as listed above: [all of them, by topic](idioms.md). See also [what the
contract does not guarantee](contract.md#what-is-not-guaranteed).
"""
IDIOMS_HEAD = """\
# Idioms

{written}

This page lists {num_idioms} ordinary training idioms, and what lockstep does with each. You need it
to look up whether a line of your loop is supported:

```
lockstep check train.py
```

A test runs each idiom, and each is linked to its function. The model, the data and the step that
they share are in [shared.py](../tests/idioms/topics/shared.py). *Inside* and *outside* are relative
to the [shard loop](loop.md#inside-and-outside-the-shard-loop).

| idioms | result |
|---|---|
| {num_equal} | **bit-identical** on every rank: on 1 to 4 processes with 4 shards, and on 1 and 4 processes with 6 shards |
| {num_plain} of these | †: with one process and one shard, also bit-identical to the same loop without lockstep |
| {num_carried} of these | §: not after a resume, unless a checkpoint contains what the [LS2 finding]({carried}) names |
| {num_refused} | **refused** with an error that contains the line to write instead. ‡: not by one process alone |
| {num_documented} | **different** on another number of processes, without an error: [ten common mistakes]({different}) |

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
    lines += [f"| {link(row)} | {coded(row.found)} | {row.promise.why} |" for row in of_kind(Differs)]
    lines.append(PITFALLS_TAIL.format(**counts()))
    return "\n".join(lines)


def idioms():
    """The text of docs/idioms.md."""
    lines = [IDIOMS_HEAD.format(written=WRITTEN, carried=CARRIED, different=DIFFERENT, **counts())]
    for name, rows in TABLE.items():
        lines.append(f"## {TOPICS[name].__doc__.removesuffix('.')}\n")
        for kind, outcome in ((Equal, "Bit-identical"), (Refused, "Refused"), (Differs, "Different")):
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


def coded(found):
    """Codes of findings, with links to their sections."""
    return ", ".join(f"[{code}](check-codes.md#{code.lower()})" for code in found.split())


def starts_over(row):
    """Whether it carries something from step to step that is in no checkpoint."""
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
