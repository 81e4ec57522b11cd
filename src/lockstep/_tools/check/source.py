"""Small questions about the text of a script, answered from its syntax tree alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, and itself: as ``ast.walk``, in half of its time."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        _push_children(node, stack)


def own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of some statements, without the nodes in functions and classes that are defined
    there."""
    stack = list(body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _SCOPES):
            _push_children(node, stack)


def _push_children(node: ast.AST, stack: list[ast.AST]) -> None:
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            stack.append(value)
        elif isinstance(value, list):
            stack += [part for part in value if isinstance(part, ast.AST)]


def body_of(function: ast.AST) -> list[ast.stmt]:
    """The statements of a function; of a lambda, the return of its expression."""
    if isinstance(function, ast.Lambda):
        return [ast.copy_location(ast.Return(function.body), function.body)]
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    return function.body


@cache
def is_generator(function: ast.AST) -> bool:
    """Whether a function yields."""
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own_nodes(body_of(function)))


def is_cached(function: ast.AST) -> bool:
    """Whether a decorator keeps what a function has returned."""
    decorators = getattr(function, "decorator_list", [])
    names = {dotted(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] for d in decorators}
    return not names.isdisjoint(("lru_cache", "cache", "cached_property"))


def own_attributes(method: ast.AST) -> set[str] | None:
    """The attributes of its object that a method names; None: it may use any, by ``vars(self)`` or
    by another method of the object."""
    arguments: list[ast.arg] = method.args.args  # type: ignore[attr-defined]
    name = arguments[0].arg if arguments else ""
    parts = list(walk(method))
    found = {id(part.value): part.attr for part in parts if isinstance(part, ast.Attribute)}
    called = {id(part.func.value) for part in parts if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)}
    own = [part for part in parts if isinstance(part, ast.Name) and part.id == name]
    if any(id(part) not in found or id(part) in called or found[id(part)] == "__dict__" for part in own):
        return None
    return (
        None
        if any(isinstance(part, ast.Name) and part.id == "super" for part in parts)
        else {found[id(part)] for part in own}
    )


@cache
def loaded_names(node: ast.AST) -> frozenset[str]:
    """The names and dotted names that an expression reads."""
    names = set()
    for part in walk(node):
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
            names.add(dotted(part))
    return frozenset(names)


def forget() -> None:
    """Let go of the trees that were read."""
    for function in (is_generator, loaded_names, reads_shards, called_names):
        function.cache_clear()


@cache
def called_names(node: ast.AST) -> frozenset[str]:
    """The last names of what is called anywhere in it; ``.shards`` and ``batch.shards``, if that is
    read."""
    names = set[str]()
    stack: list[ast.AST] = []
    _push_children(node, stack)
    while stack:
        part = stack.pop()
        if isinstance(part, ast.stmt):
            names |= called_names(part)
            continue
        if isinstance(part, ast.Attribute) and part.attr == "shards":
            names |= {".shards", f"{dotted(part.value)}.shards"}
        elif isinstance(part, ast.Call):
            names.add(part.func.attr if isinstance(part.func, ast.Attribute) else dotted(part.func))
        _push_children(part, stack)
    return frozenset(names)


def bound_names(target: ast.AST) -> set[str]:
    """The names that a target binds."""
    return {node.id for node in walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def root(node: ast.AST) -> str:
    """The name at the left end of ``a.b[c].d()``; empty: there is none."""
    while not isinstance(node, ast.Name):
        inner = node.func if isinstance(node, ast.Call) else getattr(node, "value", None)
        if not isinstance(inner, ast.AST):
            return ""
        node = inner
    return node.id


def dotted(node: ast.AST) -> str:
    """``a.b.c``; what is no name has a ``?``."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def shown(node: ast.AST) -> str:
    """A target as a finding names it: what it changes, without what is in brackets."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Call, ast.Subscript)):
            node = node.value
    name = dotted(node)
    return name if "?" not in name else ast.unparse(node)[:40]


@cache
def reads_shards(node: ast.AST) -> bool:
    """Whether ``.shards`` is part of a node."""
    return any(isinstance(part, ast.Attribute) and part.attr == "shards" for part in walk(node))


def shards_read_of(body: Iterable[ast.AST], names: set[str]) -> set[str]:
    """The names, of ``names``, whose ``.shards`` is read."""
    called = [called_names(statement) for statement in body]
    return {name for name in names if any(f"{name}.shards" in found for found in called)}


def functions_with_shards(nodes: Iterable[ast.AST]) -> set[str]:
    """Names of functions, of all these nodes, that run over shards, or call, by name, one that
    does."""
    calls: dict[str, set[str]] = {}
    for function in nodes:
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            calls.setdefault(function.name, set()).update(called_names(function))
    found = {name for name, called in calls.items() if ".shards" in called}
    grown = True
    while grown:
        more = {
            name
            for name, called in calls.items()
            if name not in found and called & found and name not in ("__init__", "forward")
        }
        found |= more
        grown = bool(more)
    return found
