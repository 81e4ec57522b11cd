"""Plain values between ranks: what lockstep itself exchanges, read without running code that came
with it.

PyTorch's object collectives unpickle whatever arrives. Here PyTorch's restricted reader does
(``torch.load`` with ``weights_only``): it makes numbers, text, bytes, None, tensors, and lists,
tuples, sets and dicts of them, and nothing else."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist


def pack(value: Any) -> bytes:
    """A plain value as bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """The value that was passed to ``pack``.

    Raises:
        Exception: the bytes are damaged, or contain something that is not plain; none of it was
            run.
    """
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def all_gather_plain(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Gathers a plain value from each rank of a group (None: of all ranks); returns them in rank
    order. A collective, which blocks until every rank of the group has called it."""
    size = dist.get_world_size(group)
    if size == 1:
        return [value]
    # A bytearray, since PyTorch warns about tensors over memory that cannot be written, such as
    # bytes.
    mine = torch.frombuffer(bytearray(pack(value)), dtype=torch.uint8)
    sizes = torch.empty(size, 1, dtype=torch.int64)
    dist.all_gather(list(sizes.unbind()), torch.tensor([mine.numel()]), group=group)
    # all_gather needs tensors of one length: the sizes travel first, then all are padded to the
    # longest.
    longest = int(sizes.max())
    padded, rows = torch.zeros(longest, dtype=torch.uint8), torch.empty(size, longest, dtype=torch.uint8)
    padded[: mine.numel()] = mine
    dist.all_gather(list(rows.unbind()), padded, group=group)
    return [unpack(row[:num_bytes].numpy().tobytes()) for row, num_bytes in zip(rows, sizes[:, 0], strict=True)]


def broadcast_plain(value: Any, src: int = 0, group: dist.ProcessGroup | None = None) -> Any:
    """Returns the plain value of a group's rank ``src`` on every rank; the others' values are
    ignored. A collective."""
    if dist.get_world_size(group) == 1:
        return value
    is_source = dist.get_rank(group) == src
    data = torch.frombuffer(bytearray(pack(value)), dtype=torch.uint8) if is_source else torch.empty(0, dtype=torch.uint8)
    num_bytes = torch.tensor([data.numel()])
    dist.broadcast(num_bytes, group_src=src, group=group)
    if not is_source:
        data = torch.empty(int(num_bytes), dtype=torch.uint8)
    dist.broadcast(data, group_src=src, group=group)
    return value if is_source else unpack(data.numpy().tobytes())
