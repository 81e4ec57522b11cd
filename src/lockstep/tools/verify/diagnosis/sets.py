"""Where a script may iterate over a set. Pure, except for reading the file."""

from __future__ import annotations

import ast
from pathlib import Path

_ORDERLESS = ("sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "isinstance")


def sets_in(file: Path) -> list[int]:
    """The lines that create a set and use more of it than its size, its sorted items or its membership."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    lines: dict[int, None] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, (ast.Set, ast.SetComp)) or (
            isinstance(node, ast.Call) and _name(node.func) in ("set", "frozenset")
        ):
            lines[node.lineno] = None
            return
        if isinstance(node, ast.Call) and _name(node.func) in _ORDERLESS:
            return
        for child in ast.iter_child_nodes(node):
            is_membership = isinstance(node, ast.Compare) and all(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
            if not (is_membership and child in node.comparators):  # type: ignore[attr-defined]
                visit(child)

    visit(tree)
    return list(lines)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""
