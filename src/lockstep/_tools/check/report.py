"""Turns uses of values that were written elsewhere into findings, one for each name."""

from __future__ import annotations

import ast
from typing import NamedTuple

from lockstep._tools.check.findings import Finding, in_order, make
from lockstep._tools.check.values import Site

_CODES_INSIDE = {
    "set": "LS101",
    "add": "LS102",
    "max": "LS102",
    "min": "LS102",
    "or": "LS102",
    "and": "LS102",
    "append": "LS103",
    "cache": "LS103",
    "change": "LS103",
    "attribute": "LS104",
    "draw": "LS105",
    "average": "LS106",
    "shard number": "LS107",
    "worker": "LS107",
    "data set": "LS109",
    "statistics": "LS110",
    "buffer": "LS110",
    "next": "LS111",
    "world": "LS112",
}
_CODES_OUTSIDE = {
    "set": "LS201",
    "add": "LS201",
    "append": "LS203",
    "cache": "LS203",
    "change": "LS203",
    "optimizer": "LS203",
    "left out": "LS203",
    "attribute": "LS201",
    "draw": "LS205",
    "average": "LS204",
    "next": "LS206",
    "number": "LS202",
    "beside epochs": "LS208",
}
"""The codes of findings for each way in which a name is changed (``Site.how``)."""


def code_of(site: Site, kind: str, *, is_control: bool) -> str | None:
    """The code of the finding that something depends on a place which has written what it uses;
    None: it is right.

    Args:
        site: the place.
        kind: of use: see ``Machine.sink``.
        is_control: whether the place decides that the use is reached.
    """
    if site.how == "world" and kind != "weights":
        return None
    if kind == "save" and not site.inside and not is_control and site.how != "average":
        return None  # the script keeps it by itself
    if site.inside:
        return "LS103" if site.method and site.how != "average" else _CODES_INSIDE.get(site.how, "LS101")
    if kind in ("print", "return") and site.how != "average":
        return None  # only shown
    return "LS203" if site.method else _CODES_OUTSIDE.get(site.how, "LS201")


class Use(NamedTuple):
    """A place in the script that uses what was written elsewhere."""

    path: str
    node: ast.AST
    inside: bool
    """Whether it runs once a shard."""


_Rank = tuple[int, bool, bool, int, int, str, int, str]
"""The rank of a finding: of several about one name, the least is kept."""


class Report:
    """One finding for each name of a function: where it is written first, and read first. In
    whatever order they come: what depends on several sites finds them in that of a set."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int, str], tuple[_Rank, Finding]] = {}

    def add(self, code: str, site: Site, use: Use | None = None, whole: str = "") -> None:
        """Note a finding. ``use``: what depends on it; None: nothing has to. ``whole``: see
        ``make``."""
        key = code, site.path, site.scope, site.name
        read = "" if use is None else _read_where(code, site, use)
        path, node = (site.path, None) if use is None else (use.path, use.node)
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        rank = site.line, not read, path != site.path, line, column, path, site.column, site.method
        if key not in self._found or rank < self._found[key][0]:
            self._found[key] = rank, make(code, *site[:4], how=site.how, method=site.method, read=read, whole=whole)

    def findings(self) -> list[Finding]:
        """All findings, sorted by place."""
        return in_order(finding for _, finding in self._found.values())


def _read_where(code: str, site: Site, use: Use) -> str:
    line = getattr(use.node, "lineno", site.line)
    if use.path != site.path:
        return f"on line {line} of {use.path}"
    if line == site.line and site.how in ("average", "change"):
        return ""  # what it was before
    return f"by later shards (line {line})" if use.inside and site.inside and code != "LS107" else f"on line {line}"
