"""Digests: short names of values, equal where the values are equal to the bit."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any

import numpy
import torch
from torch import Tensor, nn

_SIZE = 16  # bytes: two different values never share a digest by chance
_DEEPEST = 24
_PLAIN = (bool, int, bytes, complex, types.NoneType, numpy.generic)
_CODE = (nn.Module, types.FunctionType, types.MethodType, types.ModuleType, type)  # which no step changes


def digest(value: Any) -> str:
    """The digest of a tensor, a number, or of what is made of them: 32 hexadecimal digits.

    Of a tensor it is over dtype, shape and bytes, in the order of its indices: neither strides nor the device count. NaNs of
    equal bits are equal, and 0.0 differs from -0.0. Of an object that nobody can look into, only the type counts; of an
    absolute path only the last part, for where the data are may differ from machine to machine.
    """
    found = hashlib.blake2b(digest_size=_SIZE)
    _add(found, value, ())
    return found.hexdigest()


def squared_norm(tensor: Tensor) -> float:
    """The sum of squares, added up in float64 by one thread: it does not depend on the number of threads."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor.to_dense()
    numbers = tensor.cpu().resolve_conj().resolve_neg().abs().double().contiguous().numpy().reshape(-1)
    return float(numpy.square(numbers).sum())


def _add(found: Any, value: Any, within: tuple[int, ...]) -> None:
    """Args: ``within`` are the objects that hold this one, by id: there may be circles."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Tensor):
        _add_tensor(found, value)
    elif isinstance(value, numpy.ndarray) and value.dtype != object:
        found.update(f"array {value.dtype.str} {value.shape};".encode())
        found.update(numpy.ascontiguousarray(value).tobytes())
    elif isinstance(value, float):
        found.update(f"float {value.hex()};".encode())
    elif isinstance(value, (str, PurePath)):
        path = PurePath(value)
        found.update(f"{kind} {path.name if path.is_absolute() else str(value)!r};".encode())
    elif isinstance(value, _PLAIN):
        found.update(f"{kind} {value!r};".encode())
    elif isinstance(value, _CODE) or id(value) in within or len(within) > _DEEPEST:
        found.update(f"{kind};".encode())
    else:
        _add_container(found, value, kind, (*within, id(value)))


def _add_container(found: Any, value: Any, kind: str, within: tuple[int, ...]) -> None:
    if isinstance(value, Mapping):
        found.update(f"map {len(value)};".encode())
        for key, item in value.items():
            _add(found, key, within)
            _add(found, item, within)
    elif isinstance(value, Set):
        # In no order: that of a set differs from run to run, which is not a difference between the sets.
        found.update(f"set {sorted(digest(item) for item in value)};".encode())
    elif isinstance(value, (Sequence, numpy.ndarray)):
        found.update(f"list {len(value)};".encode())
        for item in value:
            _add(found, item, within)
    else:
        slots = [name for name in getattr(type(value), "__slots__", ()) if isinstance(name, str)]
        found.update(f"{kind};".encode())
        _add(found, {name: getattr(value, name, None) for name in slots}, within)
        _add(found, getattr(value, "__dict__", None), within)


def _add_tensor(found: Any, tensor: Tensor) -> None:
    tensor = tensor.detach()
    if tensor.is_nested:
        found.update(b"nested;")
        for part in tensor.unbind():
            _add_tensor(found, part)
        return
    found.update(f"tensor {tensor.dtype} {tuple(tensor.shape)} {tensor.layout};".encode())
    if tensor.layout == torch.sparse_coo:
        # As it is: coalescing would add up, and hide in which order the parts lie.
        _add_tensor(found, tensor._indices())
        _add_tensor(found, tensor._values())
    elif tensor.layout != torch.strided:
        _add_tensor(found, tensor.to_dense())
    elif tensor.is_quantized:
        _add_tensor(found, tensor.int_repr())
        _add_tensor(found, tensor.dequantize())
    elif not tensor.is_meta:
        flat = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy())
