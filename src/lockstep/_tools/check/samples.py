"""Changes of samples in place: which of them leave another sample behind each time, by the text of
a statement alone."""

from __future__ import annotations

import ast

from lockstep._tools.check import names, source

_CONVERSIONS = names.words(
    """
    int float str bool list tuple dict set Path lower upper strip lstrip rstrip casefold to cpu cuda long half double contiguous
    numpy tolist tensor as_tensor asarray array from_numpy Tensor FloatTensor LongTensor convert clamp clip abs round squeeze
    detach sorted
    """
)
"""Functions and methods that change nothing in what they have returned before."""
_SETTLED = names.words(
    """
    clamp_ clamp_min_ clamp_max_ clip_ abs_ relu_ round_ floor_ ceil_ trunc_ nan_to_num_ squeeze_ detach_ masked_fill_
    index_fill_ scatter_ resize_ requires_grad_
    """
)
"""Methods that change nothing more when they are called again."""


def moves_on(target: ast.AST, value: ast.AST) -> bool:
    """Whether ``target = value`` makes the new value of the old one, and another one each time."""
    text = ast.unparse(target)
    if not any(
        isinstance(part, (ast.Subscript, ast.Attribute)) and ast.unparse(part) == text for part in source.walk(value)
    ):
        return False
    while True:
        if isinstance(value, ast.Call):
            called = source.dotted(value.func).rpartition(".")[2]
            if called not in _CONVERSIONS:
                return True
            inner = [*value.args[:1], *([value.func.value] if isinstance(value.func, ast.Attribute) else [])]
            value = next((part for part in inner if text in ast.unparse(part)), value.func)
        elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice) and value.slice.lower is None:
            value = value.value  # cut to a length
        else:
            return ast.unparse(value) != text


def is_moving(method: ast.Attribute) -> bool:
    """Whether a method changes what it is called on, and more so each time."""
    if method.attr in names.APPENDING:
        # a list that the loader has made of samples is its user's
        return not isinstance(method.value, ast.Name)
    return names.is_in_place(method.attr) and method.attr not in names.EMPTYING | _SETTLED


def changes_argument(name: str, node: ast.AST) -> bool:
    """Whether a function of a library changes its first argument, and again with each call."""
    last = name.rpartition(".")[2]
    if last == "shuffle" and name.startswith(("random.", "numpy.random.")):
        return True
    in_place = isinstance(node, ast.Call) and any(
        keyword.arg == "inplace" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in node.keywords
    )
    return in_place and not any(word in last.lower() for word in ("relu", "tanh", "clamp", "sigmoid"))
