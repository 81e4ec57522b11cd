"""Writes docs/pitfalls.md from the table: python tests/idioms/pitfalls.py."""

from pathlib import Path

from table import TABLE, Documented, Equal, Refused

PAGE = Path(__file__).parents[2] / "docs" / "pitfalls.md"
HEAD = """\
# Pitfalls: what is refused, what differs, and what is proven equal

<!-- Written by tests/idioms/pitfalls.py from tests/idioms/table.py: change the table, and run it. -->

This page is for those who want to know how far the [contract](contract.md) goes before they trust it. Behind each line stands a
short script in [tests/idioms/scripts](../tests/idioms/scripts), written as one writes such a script, and a test that runs it:
{num_scripts} in all.

- {num_equal} give weights, buffers, gradients, optimizer states and returned numbers that are **equal to the bit** on 1, 2, 3
  and 4 processes, with 4 shards and with 6, on every rank. {num_plain} of these are also equal to the bit to a plain PyTorch
  loop (with one process and one shard).
- {num_refused} are **refused**, with an error that says what to write instead.
- {num_documented} run and **differ**, for reasons that you should know.

There is no fourth kind: what ends without an error and differs, and is not named here, is a bug.

The one rule behind all of it: **inside `batch.shards` a process sees its own shards; outside, every process does the same with
the same numbers.** What leaves the inner loop must go through `team.backward`, `batch.add`, `team.per_shard`, a model's
buffers, or a collective behind the loop."""
REFUSED_HEAD = """
## What is refused

The words are part of the message. *(several)*: only other processes can tell, so it is refused where there are two or more; one
process alone runs it.
"""
DOCUMENTED_HEAD = """
## What runs and differs
"""
EQUAL_HEAD = """
## What is proven equal

*plain*: also equal to the bit to the same loop without lockstep, on one process with one shard.
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
            num_refused=len(refused),
            num_documented=len(documented),
        ),
        REFUSED_HEAD,
        "| what a script does | the error says | script |",
        "|---|---|---|",
    ]
    for row in refused:
        several = "" if row.promise.alone else " *(several)*"
        lines.append(f"| {row.what} | `{row.promise.words}`{several} | {link(row)} |")
    lines.append(DOCUMENTED_HEAD)
    lines += [f"- {row.what} ({link(row)}). {row.promise.why}" for row in documented]
    lines.append(EQUAL_HEAD)
    for group, of_group in TABLE.items():
        proven = [row for row in of_group if isinstance(row.promise, Equal)]
        if proven:
            lines += [f"### {group[0].upper()}{group[1:]}", ""]
            lines += [f"- {row.what} ({link(row)}{', *plain*' if row.promise.plain else ''})" for row in proven]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def link(row):
    """The way to a script."""
    return f"[{row.name}](../tests/idioms/scripts/{row.name}.py)"


if __name__ == "__main__":
    PAGE.write_text(page())
