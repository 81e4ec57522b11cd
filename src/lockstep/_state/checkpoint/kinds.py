"""The types that checkpointed state may contain, in addition to lists, tensors and the types of
JSON.

The list is closed on purpose. Pickle would accept anything, but reading it can run any code, and
it ties a checkpoint to the classes of one version of a program.
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

IN_NUMPY = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
}
_SCALARS = {name: np.dtype(name).type for name in IN_NUMPY}
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_FACTORIES: dict[str | None, Callable[[], Any] | None] = {
    None: None,
    **{kind.__name__: kind for kind in (int, float, list, dict, set, str)},
}


class RefusedError(Exception):
    """A value cannot be saved. The message describes it, and the caller adds its location."""


class Kind(NamedTuple):
    """The encoding of one type by simpler values: ``together(apart(value), **options(value))`` is
    the value."""

    of: type
    apart: Callable[[Any], Any]
    together: Callable[..., Any]
    options: Callable[[Any], dict[str, Any]] = lambda _: {}


def is_plain(value: Any) -> bool:
    """Returns whether every JSON parser reads the value correctly."""
    kind = type(value)
    if kind is int:
        # 64 bits, signed or not. Python reads longer integers, other parsers round them.
        return bool(-(1 << 63) <= value < 1 << 64)
    if kind is float:
        return math.isfinite(value)
    if kind is str:
        # A lone half of a surrogate pair cannot be encoded in UTF-8.
        return value.isascii() or re.search("[\ud800-\udfff]", value) is None
    return value is None or kind is bool


def _to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _factory_name(value: defaultdict[Any, Any]) -> dict[str, Any]:
    for name, factory in _FACTORIES.items():
        if value.default_factory is factory:
            return {"factory": name}
    raise RefusedError(f"a defaultdict with the factory {value.default_factory!r}")


def _ordered_together(items: Any, metadata: Any = None) -> OrderedDict[Any, Any]:
    result = OrderedDict(items)
    if metadata is not None:
        result._metadata = metadata  # type: ignore[attr-defined]
    return result


def _scalar_together(value: Any, dtype: str) -> Any:
    kind = _SCALARS[dtype]
    return np.frombuffer(bytes.fromhex(value), kind)[0] if isinstance(value, str) else kind(value)


KINDS = {
    "$int": Kind(int, hex, lambda text: int(text, 16)),  # more than 64 bits
    "$float": Kind(float, repr, float),  # inf and nan, which JSON does not have
    "$bytes": Kind(bytes, _to_base64, _from_base64),
    "$complex": Kind(complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "$tuple": Kind(tuple, list, tuple),
    "$size": Kind(torch.Size, list, torch.Size),
    "$set": Kind(set, list, set),
    "$frozenset": Kind(frozenset, list, frozenset),
    "$deque": Kind(deque, list, deque, lambda value: {"maxlen": value.maxlen}),
    # A dict with keys that JSON does not support: its items are stored as pairs.
    "$dict": Kind(dict, dict, dict),
    # A module's state_dict() has an attribute with the versions of its submodules, by which
    # load_state_dict() converts old formats.
    "$ordered": Kind(
        OrderedDict,
        dict,
        _ordered_together,
        lambda value: {"metadata": value._metadata} if hasattr(value, "_metadata") else {},
    ),
    "$counter": Kind(Counter, dict, lambda items: Counter(items)),
    "$defaultdict": Kind(defaultdict, dict, lambda items, factory: defaultdict(_FACTORIES[factory], items), _factory_name),
    "$dtype": Kind(torch.dtype, lambda value: str(value).removeprefix("torch."), lambda name: _DTYPES[name]),
    "$device": Kind(torch.device, str, lambda text: torch.device(text)),
    # A scalar of NumPy. NaN is stored by its bytes, since it may carry a payload.
    "$scalar": Kind(
        np.generic,
        lambda value: value.item() if value == value else value.tobytes().hex(),
        _scalar_together,
        lambda value: {"dtype": value.dtype.name},
    ),
}
TAGS = {kind.of: tag for tag, kind in KINDS.items()}
TAGS.update((kind, "$scalar") for kind in np.sctypeDict.values() if np.dtype(kind).name in IN_NUMPY)
