"""Collective communication within a group of processes.

Every method is a *collective*: each rank of the group must call it, in the same order, unless its
docstring states otherwise. Each blocks until this rank's part is done. Arguments are not changed;
results are new tensors on the same device. If a rank does not call, the others raise an error after
the run's timeout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep._base.errors import ConfigError, UsageError, unknown_name
from lockstep._world.comm import plain
from lockstep._world.comm.group import Transport, open_sub_group

all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gathers into one tensor. Renamed in PyTorch 2.13, which warns about the old name."""

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,  # divided afterwards, since Gloo has no mean
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


class Collectives:
    """The collectives of one group of processes. Ranks are numbered within the group.

    Args:
        group: the process group.
        transport: the backend and network interface of the run.
        guard: called with a method's name before it communicates; raises if the call is not
            allowed.
        within_groups: the same for sub-groups, and for messages between two ranks; None: ``guard``.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        transport: Transport,
        guard: Callable[[str], None] | None = None,
        *,
        within_groups: Callable[[str], None] | None = None,
    ) -> None:
        self._open_group: dist.ProcessGroup | None = group
        self._sub_groups: list[Collectives] = []
        # Read once: both must be readable after the group has closed, and `_open_group` is None
        # then.
        self._rank = dist.get_rank(group)
        self._ranks = tuple(dist.get_process_group_ranks(group))
        self._transport = transport
        self._guard = guard if guard is not None else lambda _: None
        self._guard_within = within_groups if within_groups is not None else self._guard

    # Properties and not attributes: Python's profiler sees who asks for them
    # (`_tools/verify/diagnosis`).

    @property
    def rank(self) -> int:
        """Rank of this process within the group."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of processes in the group."""
        return len(self._ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members, numbered as in the run: the group's rank i is the run's ``ranks[i]``."""
        return self._ranks

    @property
    def group(self) -> dist.ProcessGroup:
        """PyTorch's process group."""
        if self._open_group is None:
            raise UsageError("the run is finished and its process group is closed", code="group-closed")
        return self._open_group

    def release(self) -> None:
        """Drops the references to the process group and its sub-groups, so that their threads can
        end. Local."""
        for sub_group in self._sub_groups:
            sub_group.release()
        self._open_group = None

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """Combines the tensors of all ranks elementwise; returns the result on every rank.

        Args:
            tensor: any shape and dtype, the same on every rank.
            op: ``sum``, ``mean`` (floating dtypes), ``product``, ``min`` or ``max``.
        """
        self._guard("all_reduce")
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(result, op=_find_op(op, tensor), group=self.group)
        return result.div_(self.size) if op == "mean" else result

    def reduce(self, tensor: Tensor, op: str = "sum", dst: int = 0) -> Tensor | None:
        """Like ``all_reduce``, with the result on rank ``dst`` only; None on the others."""
        self._guard("reduce")
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.reduce(result, group_dst=self._check_rank("dst", dst), op=_find_op(op, tensor), group=self.group)
        if self.rank != dst:
            return None
        return result.div_(self.size) if op == "mean" else result

    def broadcast(self, tensor: Tensor, src: int = 0) -> Tensor:
        """Returns rank ``src``'s tensor on every rank. The others give a tensor of the same shape
        and dtype."""
        self._guard("broadcast")
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(result, group_src=self._check_rank("src", src), group=self.group)
        return result

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Stacks the tensors of all ranks along a new dimension 0 in rank order: shape ``(size,
        *tensor.shape)``."""
        self._guard("all_gather")
        result = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        # The rows of the result are views, so each tensor arrives in its place, without another
        # copy.
        dist.all_gather(list(result.unbind()), tensor.detach().contiguous(), group=self.group)
        return result

    def gather(self, tensor: Tensor, dst: int = 0) -> Tensor | None:
        """Like ``all_gather``, with the result on rank ``dst`` only; None on the others."""
        self._guard("gather")
        self._check_rank("dst", dst)
        mine = tensor.detach().contiguous()
        if self.rank != dst:
            dist.gather(mine, None, group_dst=dst, group=self.group)
            return None
        result = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        dist.gather(mine, list(result.unbind()), group_dst=dst, group=self.group)
        return result

    def scatter(self, tensors: Sequence[Tensor] | Tensor | None, like: Tensor, src: int = 0) -> Tensor:
        """Sends each rank one of rank ``src``'s tensors, and returns this rank's.

        Args:
            tensors: on ``src``: one tensor per rank (or one stacked along dimension 0); ignored on
                other ranks.
            like: a tensor of the shape, dtype and device of each part; its values are ignored.
            src: the rank that gives ``tensors``.
        """
        self._guard("scatter")
        self._check_rank("src", src)
        parts = None
        if self.rank == src:
            parts = [part.detach().contiguous() for part in (tensors if tensors is not None else ())]
            if len(parts) != self.size or any(part.shape != like.shape for part in parts):
                raise ConfigError(
                    f"scatter: rank {src} passed {len(parts)} tensors of shapes "
                    f"{[tuple(part.shape) for part in parts]}. It must pass one of shape {tuple(like.shape)} "
                    f"for each of the {self.size} ranks",
                    code="scatter-shapes",
                )
        result = torch.empty_like(like, memory_format=torch.contiguous_format)
        dist.scatter(result, parts, group_src=src, group=self.group)
        return result

    def reduce_scatter(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """Combines the tensors of all ranks elementwise, and returns row ``r`` of the result on
        rank ``r``.

        Args:
            tensor: shape ``(size, ...)``, one row per rank.
            op: as for ``all_reduce``.
        """
        self._guard("reduce_scatter")
        if tensor.ndim == 0 or tensor.shape[0] != self.size:
            raise ConfigError(
                f"reduce_scatter: shape {tuple(tensor.shape)}: dimension 0 must be {self.size}, one row per rank",
                code="reduce-scatter-shape",
            )
        result = torch.empty(tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)
        dist.reduce_scatter(result, list(tensor.detach().contiguous().unbind()), op=_find_op(op, tensor), group=self.group)
        return result.div_(self.size) if op == "mean" else result

    def send(self, tensor: Tensor, dst: int, tag: int = 0) -> None:
        """Sends a tensor to rank ``dst``, which must call ``recv``. Only these two ranks call."""
        self._guard_within("send")
        dist.send(tensor.detach().contiguous(), group_dst=self._check_rank("dst", dst), group=self.group, tag=tag)

    def recv(self, like: Tensor, src: int, tag: int = 0) -> Tensor:
        """Receives a tensor from rank ``src``, of the shape, dtype and device of ``like``. Only
        these two ranks call."""
        self._guard_within("recv")
        result = torch.empty_like(like, memory_format=torch.contiguous_format)
        dist.recv(result, group_src=self._check_rank("src", src), group=self.group, tag=tag)
        return result

    def barrier(self) -> None:
        """Waits until every rank has called it."""
        self._guard("barrier")
        dist.barrier(group=self.group)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Gathers a picklable object from each rank; returns them in rank order on every rank."""
        self._guard("all_gather_object")
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def all_gather_rows(self, parts: Sequence[Tensor] | Tensor) -> tuple[Tensor, list[slice]]:
        """Concatenates the rows of all ranks in rank order, and returns where this rank's are: for
        losses over the global batch.

        Between two passes over ``batch.shards``, ranks are in shard order, and shards in the order
        of the batch::

            with torch.no_grad():
                found = [model(inputs) for inputs in batch.shards]
            rows, mine = team.all_gather_rows(found)
            for inputs, own in zip(batch.shards, mine):
                ...  # rows[own] are this shard's

        The rows have no gradients. Each rank may give any number of tensors, or none.

        Args:
            parts: this rank's tensors, one for each of its shards (or a single one): shape ``(n,
                ...)``, where only n may differ, also between ranks.

        Returns:
            All rows, the same on every rank, on the device type of the tensors; and a slice of them
            for each of ``parts``.

        Raises:
            ConfigError: the tensors differ in shape or dtype, or no rank has given one. On every
                rank.
        """
        self._guard("all_gather_rows")
        parts = [part.detach() for part in ([parts] if isinstance(parts, Tensor) else parts)]
        # The type of the device and not its index, which differs between the ranks of a machine.
        by_rank = self.all_gather_plain([(tuple(part.shape), part.dtype, part.device.type) for part in parts])
        # With the forms of all ranks, all ranks raise the error, and none waits for one that has
        # raised it alone.
        everyone = [(rank, *form) for rank, of_rank in enumerate(by_rank) for form in of_rank]
        if not everyone:
            raise ConfigError(
                "all_gather_rows: no rank has passed a tensor. Pass the tensors of this rank's shards",
                code="gather-rows-empty",
            )
        if () in [shape for _, shape, _, _ in everyone] or len({(shape[1:], *rest) for _, shape, *rest in everyone}) > 1:
            given = "; ".join(
                f"rank {rank}: {shape}, {str(dtype).removeprefix('torch.')}, {kind}" for rank, shape, dtype, kind in everyone
            )
            raise ConfigError(
                f"all_gather_rows: the tensors differ in row shape, dtype or device type ({given}). Only "
                "dimension 0, the number of rows, may differ",
                code="gather-rows-differ",
            )
        _, shape, dtype, kind = everyone[0]
        own = torch.cat(parts) if parts else torch.empty((0, *shape[1:]), dtype=dtype, device=kind)
        rows = self._gather_rows(own, [sum(shape[0] for shape, *_ in of_rank) for of_rank in by_rank])
        # Where each tensor ends, over all ranks. With two tensors of 3 and 1 rows on rank 0, and
        # one of 2 rows on rank 1, stops are 3, 4, 6; the first tensor of rank 1 has number 2, so
        # its rows are 4 and 5.
        stops = list(itertools.accumulate(shape[0] for _, shape, _, _ in everyone))
        first = sum(map(len, by_rank[: self.rank]))
        mine = stops[first : first + len(parts)]
        return rows, [slice(stop - len(part), stop) for stop, part in zip(mine, parts, strict=True)]

    def _gather_rows(self, own: Tensor, lengths: Sequence[int]) -> Tensor:
        """Concatenates rows of one shape and dtype, in rank order. ``lengths``: the number of rows
        of each rank."""
        row_bytes, own = own.element_size() * own.shape[1:].numel(), own.contiguous()
        if self.size == 1:
            return own
        if max(lengths) * row_bytes == 0:
            return own.new_empty((sum(lengths), *own.shape[1:]))
        # As bytes, which every backend sends, whatever the dtype; all padded to the longest. On the
        # device, the host does not wait.
        mine = own.view(-1).view(torch.uint8)
        device = own.device if self._transport.is_on_devices else torch.device("cpu")
        padded = torch.zeros(max(lengths) * row_bytes, dtype=torch.uint8, device=device)
        padded[: mine.numel()] = mine
        everyone = torch.empty(self.size * padded.numel(), dtype=torch.uint8, device=device)
        all_gather_flat(everyone, padded, group=self.group)
        of_ranks = everyone.view(self.size, -1)
        rows = torch.cat([row[: length * row_bytes] for row, length in zip(of_ranks, lengths, strict=True)])
        return rows.to(own.device).view(own.dtype).view(-1, *own.shape[1:])

    def broadcast_object(self, value: Any, src: int = 0) -> Any:
        """Returns rank ``src``'s picklable object on every rank; the others' values are ignored."""
        self._guard("broadcast_object")
        self._check_rank("src", src)
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, group_src=src, group=self.group)
        return box[0]

    def all_gather_plain(self, value: Any) -> list[Any]:
        """Like ``all_gather_object``, for plain values: numbers, text, bytes, None, tensors, and
        lists, tuples, sets and dicts of them. Nothing is unpickled."""
        self._guard("all_gather_plain")
        return plain.all_gather_plain(value, self.group)

    def broadcast_plain(self, value: Any, src: int = 0) -> Any:
        """Like ``broadcast_object``, for plain values."""
        self._guard("broadcast_plain")
        return plain.broadcast_plain(value, self._check_rank("src", src), self.group)

    def any(self, condition: bool | Tensor) -> bool:
        """Whether the condition is true on any rank: a time limit, or a signal. The same result on
        every rank.

        Not for the loss of a shard, which depends on the number of processes: use
        ``batch["loss"]``."""
        self._guard("any")
        flag = torch.tensor(int(condition), dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.group)
        return bool(flag)

    def new_group(self, ranks: Sequence[int]) -> Collectives | None:
        """Creates a sub-group. *Every* rank of the run must call it; ranks that are not members get
        None.

        Its collectives involve its members only, and groups without common ranks do not wait for
        each other.

        Args:
            ranks: the members, in any order; within the group they are numbered in ascending order.

        Raises:
            UsageError: called on a sub-group rather than on the team.
            ConfigError: a rank is out of range or repeated, or there are none.
        """
        self._guard("new_group")
        if self.size != dist.get_world_size():
            raise UsageError(
                "new_group() was called on a sub-group: other ranks would not know of the new group, and "
                "creating later groups would fail. Create all groups with team.new_group(), called by "
                "every rank.",
                code="group-of-sub-group",
            )
        if len(set(ranks)) != len(ranks) or not ranks:
            raise ConfigError(
                f"new_group(ranks={list(ranks)}): pass at least one rank, and each only once", code="group-ranks-invalid"
            )
        for rank in ranks:
            self._check_rank("ranks", rank)
        group = open_sub_group(ranks, self._transport)
        if self.rank not in ranks:
            return None
        sub_group = Collectives(group, self._transport, self._guard_within)
        self._sub_groups.append(sub_group)
        return sub_group

    def _check_rank(self, name: str, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise ConfigError(
                f"{name}={rank}: the ranks of this group go from 0 to {self.size - 1}", code="rank-out-of-range"
            )
        return rank


def _find_op(op: str, tensor: Tensor) -> Any:
    if op not in _OPS:
        raise unknown_name("reduction", op, _OPS)
    if op == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ConfigError(
            f"the mean of {tensor.dtype} would be truncated. Pass a floating-point tensor, or use the sum",
            code="mean-of-integers",
        )
    return _OPS[op]
