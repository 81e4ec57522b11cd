"""Tests do not depend on the words of messages: they assert codes, fields and values.

A sentence in an assertion makes every improvement of a message a change of tests, so no one
improves it. An error has a code (``codes.raises``), a finding of a run has fields (``lockstep run
--reports``), and a command has ``--json``. A short token that is data may still be asserted in a
text: a number, a path, a name, an option, a status."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)
TESTS = Path(__file__).parent
SCRIPTS = {"corpus", "scripts", "examples"}  # programs that tests run, with texts of their own
# not in a path, an option or a name
WORD = re.compile(r"(?<![\w\\/.$<=-])[A-Za-z']{2,}(?![\w/=>]|[.:-]\w)")
MOST_IN_PATTERN = 4
MOST_IN_TEXT = 6
SEARCHES = {"search", "match", "fullmatch", "findall", "finditer"}
TEXTS = {"startswith", "endswith", "count", "index", "find"}
# those of parametrized tests that hold a part of a text
COLUMNS = {"message", "named", "reason", "said", "words"}

DATA = {
    "cluster/test_slurm_jobs.py": {"Requested node configuration": "sbatch prints it"},
    "docs/test_tutorial.py": {"^pip install": "commands of a page"},
    "launch/test_failures.py": {"DataLoader worker": "PyTorch raises it"},
    "events/measure/test_pass_progress.py": {"epoch 1/2": "a line drawn from the test's own values, whole"},
    "test_install.py": {"ERROR: No matching": "pip prints it, as the test's program does"},
}
"""The literals that may stay, by file: how each begins, and why it is data."""


def found_in(source: str) -> Iterator[tuple[int, str]]:
    """The line and text of each sentence that an assertion depends on."""
    for node in ast.walk(ast.parse(source)):
        for part, most in _asserted(node):
            for line, text in _texts(part):
                alternatives = text.split("|") if most == MOST_IN_PATTERN else [text]
                if max(len(WORD.findall(each)) for each in alternatives) > most:
                    yield line, text


def _asserted(node: ast.AST) -> Iterator[tuple[ast.expr, int]]:
    """The literals that are compared with a text, and how many words each may have."""
    if isinstance(node, ast.keyword) and node.arg == "match":
        yield node.value, MOST_IN_PATTERN
    elif isinstance(node, ast.Compare):
        for part in (node.left, *node.comparators):
            yield part, MOST_IN_TEXT
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        if node.func.attr == "parametrize" and len(node.args) > 1:
            yield from ((part, MOST_IN_PATTERN) for part in _columns(*node.args[:2]))
        elif node.func.attr in SEARCHES:
            yield node.args[0], MOST_IN_PATTERN
        elif node.func.attr in TEXTS:
            yield node.args[0], MOST_IN_TEXT


def _columns(names: ast.expr, rows: ast.expr) -> Iterator[ast.expr]:
    """The parts of a table of cases that are parts of a text, as their columns' names say."""
    named = [name.value for name in ast.walk(names) if isinstance(name, ast.Constant)]
    if COLUMNS.isdisjoint(named) or not isinstance(rows, ast.List):
        return
    for row in rows.elts:
        cells = row.args if isinstance(row, ast.Call) else row.elts if isinstance(row, ast.Tuple) else [row]
        yield from (cell for name, cell in zip(named, cells, strict=False) if name in COLUMNS)


def _texts(part: ast.expr) -> Iterator[tuple[int, str]]:
    """The literals in an expression. An f-string is taken without its values."""
    if isinstance(part, ast.Constant) and isinstance(part.value, str):
        yield part.lineno, part.value
    elif isinstance(part, ast.JoinedStr):
        yield part.lineno, "".join(str(each.value) if isinstance(each, ast.Constant) else " " for each in part.values)
    elif isinstance(part, ast.BinOp):
        yield from _texts(part.left)
        yield from _texts(part.right)
    elif isinstance(part, (ast.Tuple, ast.List, ast.Set)):
        for each in part.elts:
            yield from _texts(each)


def _sentences() -> list[tuple[str, int, str]]:
    return [
        (name, line, text)
        for path in sorted(TESTS.rglob("*.py"))
        if not SCRIPTS & set(path.relative_to(TESTS).parts)
        for name in [path.relative_to(TESTS).as_posix()]
        for line, text in found_in(path.read_text())
    ]


def test_no_assertion_depends_on_a_sentence():
    unknown = [
        f"{name}:{line}: {text!r}" for name, line, text in _sentences() if not text.startswith(tuple(DATA.get(name, ())))
    ]
    assert not unknown, "assert a code, a field or a value instead:\n" + "\n".join(unknown)


def test_every_entry_of_the_table_is_used():
    found = {(name, start) for name, _, text in _sentences() for start in DATA.get(name, ()) if text.startswith(start)}
    assert found == {(name, start) for name, starts in DATA.items() for start in starts}


@pytest.mark.parametrize(
    "source",
    [
        'raises(ConfigError, match="the loss is NaN in step 2")',
        'assert "step 2: the weights of all shards sum to zero" in message',
        'assert message == f"rank {rank} was killed and the others wait for it"',
        'assert told == ["no weights of that name: there is another one"]',
        'assert re.search(r"rank \\d waits for rank \\d in step \\d", text)',
        'assert text.startswith("the ranks of this run have different data")',
        'pytest.mark.parametrize(("args", "words"), [((), "it needs at least one argument")])',
        'pytest.mark.parametrize("said", [pytest.param("it needs at least one argument", id="x")])',
    ],
)
def test_a_sentence_is_found(source):
    assert len(list(found_in(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        'raises(ConfigError, match=r"--nproc-per-node 2 .*train\\.py, line 2")',
        'assert "host0 (rank 0), host1 (ranks 1 to 2)" in text',
        'assert command == "lockstep run --nproc-per-node 2 --shards 4 train.py"',
        'assert re.search("failed|lost|new rendezvous|no progress", text)',
        'assert shown == words, "an explanation for the reader of a failed test"',
        'pytest.mark.parametrize(("source", "code"), [("import lockstep as one of the names", "x")])',
    ],
)
def test_data_are_no_sentence(source):
    assert list(found_in(source)) == []
