"""A collective as a rank has called it, and the property in which two calls differ that must be the
same on all ranks. Pure."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_TO_ROOT = ("reduce", "gather", "send")
_COPYING = ("broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "all_to_all")
_BYTES = {"bool", "byte"}
"""The types that may replace each other where they are only copied."""
_SAME_SHAPES = (
    "_allgather_base",
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
)
"""Collectives whose tensors must have the same shape on all ranks, with every backend."""
_FAMILIES = {"all_reduce": "reduce_scatter barrier", "all_gather": "allgather"}
"""The names that the recorders of some backends use for a collective, in addition to its name."""
_MOST_SHAPES = 3
_TEXT = re.compile(
    r"(?P<kind>\w+)(?: \((?:shape (?P<shapes>\[.*\])(?P<more>, \.\.\.)? of (?P<dtype>[\w/]+))?"
    r"(?:(?:, )?op (?P<op>\w+))?(?:(?:, )?(?:from|to) rank (?P<root>\d+))?\))?"
)

Shapes = tuple[tuple[int, ...], ...]


class Call(NamedTuple):
    """A collective or a message, as one rank has called it."""

    kind: str
    """The collective's name in PyTorch's recorder: ``all_reduce``."""
    dtype: str = ""
    """The types of the tensors, in the recorder's words (``float``); empty: none, or unknown."""
    shapes: Shapes = ()
    """The shapes of the first tensors that this rank passes."""
    op: str = ""
    """The reduction, as ``SUM``; empty: none, or unknown."""
    root: int | None = None
    """The rank from or to which data goes; None: all ranks have the same role, or unknown."""

    def __str__(self) -> str:
        shapes = ", ".join(str(list(shape)) for shape in self.shapes[:_MOST_SHAPES])
        more = ", ..." if len(self.shapes) > _MOST_SHAPES else ""
        way = "to" if self.kind in _TO_ROOT else "from"
        details = [
            f"shape {shapes}{more} of {self.dtype}" if self.shapes else "",
            f"op {self.op}" if self.op else "",
            "" if self.root is None else f"{way} rank {self.root}",
        ]
        said = ", ".join(filter(None, details))
        return f"{self.kind} ({said})" if said else self.kind


def parse(text: str) -> Call:
    """The call that such a text describes. One of another form is its kind as a whole."""
    if (found := _TEXT.fullmatch(text)) is None:
        return Call(text)
    shapes = [_shape(each) for each in re.findall(r"\[([\d, ]*)\]", found["shapes"] or "")]
    if found["more"]:
        shapes.append(())
    root = None if found["root"] is None else int(found["root"])
    return Call(found["kind"], found["dtype"] or "", tuple(shapes), found["op"] or "", root)


def difference(one: Call, other: Call, *, is_loose: bool = False) -> str:
    """What two calls of one collective differ in that must be the same on all ranks: ``kind``,
    ``dtype``, ``size``, ``op`` or ``root``; empty: in nothing, as far as is known.

    Args:
        one: a rank's call.
        other: another rank's.
        is_loose: whether they are known from different sources, which may have different names for
            one collective.
    """
    if one.kind != other.kind:
        return "" if is_loose and _family(one.kind) == _family(other.kind) else "kind"
    types = {one.dtype, other.dtype}
    if len(types) > 1 and "" not in types and not (one.kind in _COPYING and types == _BYTES):
        return "dtype"
    if one.kind in _SAME_SHAPES and not _have_same_shapes(one.shapes, other.shapes):
        return "size"
    if one.op and other.op and one.op != other.op:
        return "op"
    return "root" if one.root is not None and other.root is not None and one.root != other.root else ""


def sizes_differ(one: Call, other: Call) -> bool:
    """Whether ranks put in tensors of different sizes, which some backends allow."""
    return one.kind == other.kind and not _have_same_shapes(one.shapes, other.shapes)


def _family(kind: str) -> str:
    return next(
        (family for family, names in _FAMILIES.items() if any(name in kind for name in (family, *names.split()))), kind
    )


def _have_same_shapes(one: Shapes, other: Shapes) -> bool:
    if not one or not other:
        return True
    return len(one) == len(other) and all(map(_belong_together, one, other))


def _belong_together(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether elements meet that belong together: a scalar may be a vector, and any tensor may be
    flattened."""
    shapes = [tuple(size for size in shape if size != 1) for shape in (one, other)]
    is_flat = any(len(shape) < 2 for shape in shapes)
    return shapes[0] == shapes[1] or (is_flat and math.prod(one) == math.prod(other))


def _shape(sizes: str) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes.split(",") if size.strip())
