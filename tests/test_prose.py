"""Tests do not depend on the words of messages: they assert codes, fields and values.

A sentence in an assertion makes every improvement of a message a change of tests, so nobody
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
WORD = re.compile(r"(?<![\w\\/.$<=-])[A-Za-z']{2,}(?![\w/=>]|[.:-]\w)")  # not in a path, an option or a name
MOST_IN_PATTERN = 4
MOST_IN_TEXT = 6
SEARCHES = {"search", "match", "fullmatch", "findall", "finditer"}
TEXTS = {"startswith", "endswith", "count", "index", "find"}

DATA = {}
"""The literals that may stay, by file: each begins as here, and is data for the reason given."""


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
        if node.func.attr in SEARCHES:
            yield node.args[0], MOST_IN_PATTERN
        elif node.func.attr in TEXTS:
            yield node.args[0], MOST_IN_TEXT


def _texts(part: ast.expr) -> Iterator[tuple[int, str]]:
    """The literals in an expression, those of f-strings without their values."""
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


def _files() -> list[Path]:
    return [path for path in sorted(TESTS.rglob("*.py")) if not SCRIPTS & set(path.relative_to(TESTS).parts)]


def test_no_assertion_depends_on_a_sentence():
    sentences = [
        f"{path.relative_to(TESTS)}:{line}: {text!r}"
        for path in _files()
        for line, text in found_in(path.read_text())
        if not any(text.startswith(start) for start, _ in DATA.get(str(path.relative_to(TESTS)), ()))
    ]
    assert not sentences, "assert a code, a field or a value instead:\n" + "\n".join(sentences)
