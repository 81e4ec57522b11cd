"""The page of fifteen problems names tests that exist, for every problem."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| (\d+) \| .* \| ([^|]+) \|$", (ROOT / "docs" / "internals" / "guarantees.md").read_text(), flags=re.MULTILINE
)


def functions(path):
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_there_are_fifteen():
    assert [int(number) for number, _ in ROWS] == list(range(1, 16))


def test_each_has_tests_that_exist():
    for number, cell in ROWS:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cell)
        assert tests, f"problem {number} has no test"
        for path, name in tests:
            assert (ROOT / path).exists(), path
            assert name in functions(ROOT / path), f"{path}::{name}"
