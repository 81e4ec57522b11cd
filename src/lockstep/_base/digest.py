"""Digests of values, equal if and only if the values are bit-identical."""

from __future__ import annotations

import hashlib
import itertools
import types
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any

import numpy
import torch
from torch import Tensor, nn

_SIZE = 16  # bytes, enough to rule out collisions by chance
_MAX_DEPTH = 24
_MOST_ELEMENTS, _MOST_ITEMS = 256, 8  # of a value's parts, in a sketch
_IN_NUMPY = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)
_STACKED = frozenset({*_IN_NUMPY, torch.bfloat16, torch.int8, torch.complex64, torch.complex128})
_PLAIN = (bool, int, bytes, complex, types.NoneType, numpy.generic)
_DENSE = (Tensor, nn.Parameter, nn.Buffer)
_MOST_GROUPED, _MOST_STACKED = 2**20, 2**24  # bytes, of a tensor that is summed with others, and of all of these
# What steps do not change: only its type is covered.
_CODE = (nn.Module, types.FunctionType, types.MethodType, types.ModuleType, type)


def digest(value: Any) -> str:
    """Returns the digest of a tensor, a number, or a structure of them: 32 hexadecimal digits.

    For tensors it covers dtype, shape and elements in index order, but neither strides nor device.
    NaNs with identical bits are equal, and 0.0 differs from -0.0. For opaque objects only the type
    is covered, and for absolute paths only the last component, since data may be in different
    places on different machines."""
    hasher = hashlib.blake2b(digest_size=_SIZE)
    _add(hasher, value, ())
    return hasher.hexdigest()


def sketch(value: Any) -> str:
    """Returns a digest of bounded cost. Of long tensors, texts and lists it reads only items at
    equal distances, and of tensors on other devices than the CPU only the shape. Bit-identical
    values have equal sketches, and different samples of one dataset hardly ever do."""
    hasher = hashlib.blake2b(digest_size=_SIZE)
    _add_some(hasher, value, ())
    return hasher.hexdigest()


def squared_norm(tensor: Tensor) -> float:
    """The sum of squares in float64, computed by one thread, so that it does not depend on the
    number of threads."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor.to_dense()
    numbers = tensor.cpu().resolve_conj().resolve_neg().abs().double().contiguous().numpy().reshape(-1)
    return float(numpy.square(numbers).sum())


def bit_sums(tensors: Sequence[Tensor]) -> list[int]:
    """Returns the sum of each tensor's bits as 64-bit integers, which wrap around instead of
    rounding, with one transfer per device.

    It is about ten times as fast as ``digest``, and does not detect elements that change places.
    (For narrower integers PyTorch would first make a wide copy of the whole tensor.)"""
    return unread_sums(tensors).read()


class UnreadSums:
    """Sums of bits on their devices, to be read later: see ``unread_sums``."""

    def __init__(self) -> None:
        self.vectors: list[Tensor] = []
        """The sums, as int64, in vectors of any order."""
        self._numbers: list[Sequence[int]] = []
        """The numbers of the tensors whose sums are in each vector."""

    def put(self, sums: Tensor, numbers: Sequence[int]) -> None:
        """Puts in a vector with the sums of the tensors with these numbers, instead of earlier
        sums of the same tensors."""
        self.vectors.append(sums)
        self._numbers.append(numbers)

    def in_order(self, values: Iterable[Sequence[Any]]) -> list[Any]:
        """Returns what the vectors contain, in the order of the tensors. ``values``: the contents
        of each vector."""
        pairs = [zip(numbers, vector, strict=True) for numbers, vector in zip(self._numbers, values, strict=True)]
        by_number = dict(itertools.chain.from_iterable(pairs))
        return [by_number[number] for number in sorted(by_number)]

    def scalars(self) -> list[Tensor]:
        """Returns the sums in the order of the tensors, without waiting for the devices."""
        return self.in_order(vector.unbind() for vector in self.vectors)

    def read(self) -> list[int]:
        """Returns the sums in the order of the tensors, with one transfer per device."""
        read: dict[int, list[int]] = {}
        for device in {vector.device for vector in self.vectors}:
            here = [number for number, vector in enumerate(self.vectors) if vector.device == device]
            values = iter(torch.cat([self.vectors[number] for number in here]).tolist())
            read.update((number, list(itertools.islice(values, len(self.vectors[number])))) for number in here)
        return self.in_order(read[number] for number in range(len(self.vectors)))


@torch.no_grad()
def unread_sums(tensors: Sequence[Tensor]) -> UnreadSums:
    """Returns ``bit_sum`` of each tensor, without waiting for the devices.

    Small tensors of one shape, such as the weights of a model's normalizations and the optimizer's
    state for them, are summed together: one by one, the calls for each would take far longer than
    the sums."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    found: dict[torch.device, list[tuple[Tensor, list[int]]]] = {}

    def put(vector: Tensor, numbers: list[int]) -> None:
        found.setdefault(vector.device, []).append((vector, numbers))

    for number, tensor in enumerate(tensors):
        # A subclass may have other bits than it shows, as a nested or quantized tensor has.
        if type(tensor) in _DENSE and tensor.dtype in _STACKED and tensor.layout is torch.strided and not tensor.is_nested:
            groups.setdefault((tensor.shape, tensor.dtype, tensor.device), []).append(number)
        else:
            put(bit_sum(tensor).reshape(1), [number])
    for numbers in groups.values():
        num_bytes = tensors[numbers[0]].nbytes
        if num_bytes > _MOST_GROUPED:
            put(torch.stack([bit_sum(tensors[number]) for number in numbers]), numbers)
            continue
        most = max(1, _MOST_STACKED // max(1, num_bytes))
        for some in (numbers[at : at + most] for at in range(0, len(numbers), most)):
            put(_row_sums(torch.stack([tensors[number] for number in some])), some)
    sums = UnreadSums()
    for vectors in found.values():  # one of each device, which is read at once
        sums.put(torch.cat([vector for vector, _ in vectors]), [number for _, numbers in vectors for number in numbers])
    return sums


def _row_sums(rows: Tensor) -> Tensor:
    """Returns ``bit_sum`` of each row of a new tensor."""
    data = _flat(rows).view(torch.uint8)
    row_bytes = len(data) // len(rows)
    whole = row_bytes // 8 * 8
    if whole == row_bytes:
        return data.view(torch.int64).view(len(rows), row_bytes // 8).sum(1)
    data = data.view(len(rows), row_bytes)
    words = _flat(data[:, :whole]).view(torch.int64).view(len(rows), whole // 8)
    return words.sum(1) + data[:, whole:].sum(1, dtype=torch.int64)


def bit_sum(tensor: Tensor) -> Tensor:
    """Returns the sum of one tensor's bits: a scalar on its device, without waiting for the
    device."""
    dense = tensor.detach()
    flat = _flat(dense if dense.layout == torch.strided else dense.to_dense())
    # The result must not depend on the alignment in memory, which may differ between ranks.
    is_aligned = flat.storage_offset() * flat.itemsize % 8 == 0
    if is_aligned and flat.nbytes % 8 == 0:
        return flat.view(torch.int64).sum()
    data = flat.view(torch.uint8)
    whole = flat.nbytes // 8 * 8
    wide = (data if is_aligned else data.clone())[:whole].view(torch.int64)
    return wide.sum() + data[whole:].sum(dtype=torch.int64)


def bit_sum_of_part(part: Tensor, begin: int, whole_bytes: int) -> Tensor:
    """Returns what a part of a tensor adds to its ``bit_sum``: the results for all parts add up to
    it, for any cut.

    Args:
        part: consecutive elements of the tensor.
        begin: the number of bytes before them.
        whole_bytes: the size of the tensor.
    """
    # The whole tensor is a row of 8-byte words, and the part may begin and end within a word. A
    # byte at place p counts p % 8 bytes further up, as it does in its word (little-endian), so the
    # bytes of a word add up to the word although two ranks have them. For a part of bytes 6 to 20:
    # 6 and 7 are shifted by 48 and 56 bits, 8 to 15 are a word, and 16 to 19 are shifted by 0 to 24
    # bits.
    data = _flat(part.detach()).view(torch.uint8)
    end = begin + len(data)
    first, last = -(-begin // 8) * 8, end // 8 * 8
    if first >= last:  # no whole word
        first = last = end
    words = data[first - begin : last - begin].clone().view(torch.int64)
    loose = torch.cat([data[: first - begin], data[last - begin :]]).to(torch.int64)
    places = torch.cat([torch.arange(*ends, device=data.device) for ends in ((begin, first), (last, end))])
    # Bytes behind the last whole word are added as they are.
    shifts = torch.where(places < whole_bytes // 8 * 8, places % 8 * 8, torch.zeros_like(places))
    return words.sum() + torch.bitwise_left_shift(loose, shifts).sum()


def read_sums(sums: Sequence[Tensor]) -> list[int]:
    """The results of ``bit_sum`` as integers, with one transfer per device."""
    totals = [0] * len(sums)
    for device in {total.device for total in sums}:
        here = [number for number, total in enumerate(sums) if total.device == device]
        for number, value in zip(here, torch.stack([sums[number] for number in here]).tolist(), strict=True):
            totals[number] = value
    return totals


def _add_some(hasher: Any, value: Any, within: tuple[int, ...]) -> None:
    """Updates a hash with a part of a value. ``within``: as for ``_add``."""
    if isinstance(value, Tensor):
        _add_some_elements(hasher, value.detach())
    elif isinstance(value, numpy.ndarray) and value.dtype != object:
        hasher.update(f"array {value.dtype.str} {value.shape};".encode())
        hasher.update((value[_lattice(value.shape)] if value.size > _MOST_ELEMENTS else value).tobytes())
    elif isinstance(value, (str, bytes)) and len(value) > _MOST_ELEMENTS:
        # Pieces of 16 characters. The last place is 16 before the end, so the end is covered, too.
        pieces = [value[at : at + 16] for at in _spread(len(value) - 15)]
        hasher.update(f"{type(value).__name__} {len(value)} {pieces!r};".encode())
    elif isinstance(value, (float, str, PurePath, *_PLAIN, *_CODE, Set)):
        _add(hasher, value, within)
    elif id(value) in within or len(within) > _MAX_DEPTH // 4:
        hasher.update(f"{type(value).__module__}.{type(value).__qualname__};".encode())
    elif isinstance(value, Mapping):
        hasher.update(f"map {len(value)};".encode())
        for key, item in itertools.islice(value.items(), _MOST_ITEMS):
            _add(hasher, key, within)
            _add_some(hasher, item, (*within, id(value)))
    elif isinstance(value, (Sequence, numpy.ndarray)):
        hasher.update(f"list {len(value)};".encode())
        for at in _spread(len(value)):
            _add_some(hasher, value[at], (*within, id(value)))
    else:
        slots = [name for name in getattr(type(value), "__slots__", ()) if isinstance(name, str)]
        hasher.update(f"{type(value).__module__}.{type(value).__qualname__};".encode())
        attributes = {**{name: getattr(value, name, None) for name in slots}, **getattr(value, "__dict__", {})}
        _add_some(hasher, attributes, (*within, id(value)))


def _add_some_elements(hasher: Any, tensor: Tensor) -> None:
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized:
        _add_tensor(hasher, tensor)
        return
    hasher.update(f"tensor {tensor.dtype} {tuple(tensor.shape)};".encode())
    if not tensor.is_cpu:
        return  # a sketch waits for no device
    if tensor.numel() > _MOST_ELEMENTS:
        tensor = tensor[_lattice(tensor.shape)]
    if tensor.dtype in _IN_NUMPY and not tensor.is_neg():
        hasher.update(tensor.numpy().tobytes())  # the quickest way
    else:
        hasher.update(_flat(tensor).view(torch.uint8).numpy())


def _spread(length: int) -> Sequence[int]:
    """Returns positions at equal distances, including the first and the last."""
    most = _MOST_ITEMS
    return range(length) if length <= most else [number * (length - 1) // (most - 1) for number in range(most)]


def _lattice(shape: Sequence[int]) -> tuple[slice, ...]:
    """Returns slices of an array that select about ``_MOST_ELEMENTS`` of its elements, without
    copying the others."""
    # Of each dimension the same number: 16 of a matrix, 6 of three dimensions (216 in all), 4 of
    # four.
    each = max(2, int(_MOST_ELEMENTS ** (1 / len(shape))))
    return tuple(slice(None, None, -(-length // each)) for length in shape)


def _add(hasher: Any, value: Any, within: tuple[int, ...]) -> None:
    """Updates a hash with a value. ``within``: the ids of the containers of this value, to detect
    cycles."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Tensor):
        _add_tensor(hasher, value)
    elif isinstance(value, numpy.ndarray) and value.dtype != object:
        hasher.update(f"array {value.dtype.str} {value.shape};".encode())
        hasher.update(numpy.ascontiguousarray(value).tobytes())
    elif isinstance(value, float):
        hasher.update(f"float {value.hex()};".encode())
    elif isinstance(value, (str, PurePath)):
        path = PurePath(value)
        hasher.update(f"{kind} {path.name if path.is_absolute() else str(value)!r};".encode())
    elif isinstance(value, _PLAIN):
        hasher.update(f"{kind} {value!r};".encode())
    elif isinstance(value, _CODE) or id(value) in within or len(within) > _MAX_DEPTH:
        hasher.update(f"{kind};".encode())
    else:
        _add_container(hasher, value, kind, (*within, id(value)))


def _add_container(hasher: Any, value: Any, kind: str, within: tuple[int, ...]) -> None:
    if isinstance(value, Mapping):
        hasher.update(f"map {len(value)};".encode())
        for key, item in value.items():
            _add(hasher, key, within)
            _add(hasher, item, within)
    elif isinstance(value, Set):
        # Sorted, since the iteration order of equal sets differs between runs.
        hasher.update(f"set {sorted(digest(item) for item in value)};".encode())
    elif isinstance(value, (Sequence, numpy.ndarray)):
        # With the length: otherwise [[1], 2] and [[1, 2]] would be the same sequence of items.
        hasher.update(f"list {len(value)};".encode())
        for item in value:
            _add(hasher, item, within)
    else:
        slots = [name for name in getattr(type(value), "__slots__", ()) if isinstance(name, str)]
        hasher.update(f"{kind};".encode())
        _add(hasher, {name: getattr(value, name, None) for name in slots}, within)
        _add(hasher, getattr(value, "__dict__", None), within)


def _add_tensor(hasher: Any, tensor: Tensor) -> None:
    tensor = tensor.detach()
    if tensor.is_nested:
        hasher.update(b"nested;")
        for part in tensor.unbind():
            _add_tensor(hasher, part)
        return
    hasher.update(f"tensor {tensor.dtype} {tuple(tensor.shape)} {tensor.layout};".encode())
    if tensor.layout == torch.sparse_coo:
        # Uncoalesced: coalescing would add elements, and hide their order.
        _add_tensor(hasher, tensor._indices())
        _add_tensor(hasher, tensor._values())
    elif tensor.layout != torch.strided:
        _add_tensor(hasher, tensor.to_dense())
    elif tensor.is_quantized:
        _add_tensor(hasher, tensor.int_repr())
        _add_tensor(hasher, tensor.dequantize())
    elif not tensor.is_meta:
        hasher.update(_flat(tensor.cpu()).view(torch.uint8).numpy())


def _flat(tensor: Tensor) -> Tensor:
    """Returns the elements in index order, with stride 1. (``reshape`` keeps the stride of a single
    element, such as that of a column of one row, and then its bytes cannot be viewed.)"""
    return tensor.resolve_conj().resolve_neg().contiguous().as_strided((tensor.numel(),), (1,))
