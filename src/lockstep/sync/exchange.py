"""Summing nodes of the tree over processes: each rank sums one slice of all nodes and distributes the result.

For one node per rank the traffic is that of a ring all-reduce. Where it costs no more (two ranks), or hardly more (short
tensors), every rank sends all its nodes to all others instead and sums everything itself: half as many messages.

Messages carry tags, so they match in whatever order the ranks send them; collectives would not. (Gloo matches collectives
by the order in which they are issued, which differs between ranks here.) Between hosts, long messages are split into
pieces that are all posted before any is waited for, since Gloo does not send one long message both ways at once. Within a
host that would only cost time.

If everything in a phase is short, it is held back for one message with the numbers of the phase (``gather``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.base.errors import PeerError
from lockstep.plan.tree import sum_subtrees
from lockstep.sync.together import gather_parts
from lockstep.world.comm.waiter import has_timed_out

_UNIT = 16  # elements: slices begin at multiples of 64 bytes of float32
_PIECE_BYTES = 512 << 10
_SHORT_BYTES = 64 << 10
_LAG = 2  # exchanges started before the sum of the oldest is waited for
_FIRST_TAG = 1 << 30  # lower tags are left to the user
_TAGS_PER_PHASE = 1 << 24

Roots = Sequence[Sequence[tuple[int, int]]]
"""For each rank: start and size of each of its subtrees."""


def slice_of(rank: int, length: int, num_ranks: int) -> slice:
    """The elements of a flat tensor that a rank sums: nearly equal parts, aligned."""
    width = -(-length // (_UNIT * num_ranks)) * _UNIT
    return slice(min(rank * width, length), min((rank + 1) * width, length))


class Exchange:
    """Sums flat tensors over the ranks, several at a time. Every rank must make the same calls in the same order.

    Args:
        rank: this process's rank in the default group.
        between_hosts: whether any messages go over a network.
    """

    def __init__(self, rank: int, *, between_hosts: bool = False) -> None:
        self.rank = rank
        self.waited_s = 0.0
        """Seconds that this rank has waited for others since this was last set to 0."""
        self.piece_bytes = _PIECE_BYTES if between_hosts else 1 << 40
        self.roots: Roots = [[]]
        """The subtrees of ranks 0, 1, ..."""
        self.holds = False
        """Whether started exchanges wait for ``gather``."""
        self._tag = _FIRST_TAG
        self._sending: deque[_Underway] = deque()
        self._gathering: list[_Underway] = []
        self._held: list[list[Tensor]] = []
        """The nodes that ``gather`` will send."""
        self._scratch: dict[tuple[torch.dtype, int], list[Tensor]] = {}

    def begin_phase(self, number: int, roots: Roots, *, holds: bool = False) -> None:
        """Begin a phase.

        Args:
            number: number of the phase within this launch, the same on every rank.
            roots: the subtrees of ranks 0, 1, ...
            holds: whether exchanges started before ``gather`` are held back for it. If so, it must be called.
        """
        self.roots = roots
        self.holds, self._held = holds, []
        self._tag = _FIRST_TAG + number % 2 * _TAGS_PER_PHASE

    def start(self, nodes: list[Tensor]) -> None:
        """Start summing flat tensors over all ranks. Returns at once; after ``finish`` the sum is in ``nodes[0]``.

        Args:
            nodes: one tensor for each of this rank's subtrees, in order: shape ``(n,)``, the same dtype and n on every rank.
        """
        if self.holds:
            self._held.append(nodes)
            return
        self._sending.append(_Underway(self, nodes))
        while len(self._sending) > _LAG:
            self._advance()

    def finish(self) -> None:
        """Wait until all started exchanges are complete.

        Raises:
            PeerError: a rank did not take part within the timeout.
        """
        while self._sending:
            self._advance()
        for underway in self._gathering:
            underway.finish()
        self._gathering = []

    def gather(self, row: list[float]) -> list[list[float]]:
        """Gather a row of numbers from each rank, and complete the exchanges held back, in one collective.

        Args:
            row: numbers, of equal length on every rank.

        Returns:
            The rows by rank.
        """
        held, self._held, self.holds = self._held, [], False
        most_nodes = max(map(len, self.roots))
        parts = [part for nodes in held for part in (*nodes, *[torch.zeros_like(nodes[0])] * (most_nodes - len(nodes)))]
        rows, by_rank = gather_parts(row, parts, len(self.roots))
        for number, nodes in enumerate(held):
            node_parts = by_rank[number * most_nodes :]
            values = (node_parts[node][rank] for rank, roots in enumerate(self.roots) for node in range(len(roots)))
            nodes[0].copy_(sum_subtrees(self.roots, values, Tensor.add_))
        return rows

    def _advance(self) -> None:
        underway = self._sending.popleft()
        underway.add()
        self._gathering.append(underway)

    # For _Underway

    def reserve_tags(self, number: int) -> int:
        """Reserve ``number`` consecutive tags, unique in this phase; returns the first."""
        first = self._tag
        self._tag += number
        return first

    def take_scratch(self, dtype: torch.dtype, length: int) -> Tensor:
        """Memory to receive into."""
        free = self._scratch.setdefault((dtype, length), [])
        return free.pop() if free else torch.empty(length, dtype=dtype)

    def give_back(self, scratch: Tensor) -> None:
        """Return memory for reuse."""
        self._scratch[scratch.dtype, scratch.numel()].append(scratch)


class _Underway:
    """One exchange in progress."""

    def __init__(self, exchange: Exchange, nodes: list[Tensor]) -> None:
        self._exchange = exchange
        self._on_gpu = nodes if not nodes[0].is_cpu and len(exchange.roots) > 1 else None
        # Gloo sends from CPU memory only: tensors on a GPU are copied there and back.
        self._nodes = nodes if self._on_gpu is None else [node.cpu() for node in nodes]
        self._sends: list[dist.Work] = []
        self._gathers: list[dist.Work] = []
        self._receives: list[dist.Work] = []
        self._received: dict[int, list[Tensor]] = {}
        rank, roots = exchange.rank, exchange.roots
        length = self._nodes[0].numel()
        num_bytes = length * self._nodes[0].element_size()
        self._is_broad = len(roots) == 2 or num_bytes <= _SHORT_BYTES
        if self._is_broad:
            self._slices = [slice(0, length)] * len(roots)
        else:
            self._slices = [slice_of(peer, length, len(roots)) for peer in range(len(roots))]
        width = self._slices[0].stop - self._slices[0].start
        self._piece = exchange.piece_bytes // self._nodes[0].element_size()
        self._num_pieces = -(-width // self._piece)
        # One tag for every piece of every subtree, and for every piece of the result.
        most_nodes = max(map(len, roots))
        self._tag = exchange.reserve_tags((most_nodes + 1) * self._num_pieces)
        self._result_tag = self._tag + most_nodes * self._num_pieces
        self._mine = self._slices[rank]
        peers = [*range(rank + 1, len(roots)), *range(rank)]  # each rank begins with another peer, to spread the load
        for peer in peers:
            self._post_receives(peer, len(roots[peer]))
        for peer in peers:
            for number, node in enumerate(self._nodes):
                self._send(node[self._slices[peer]], peer, self._tag + number * self._num_pieces)
        self._peers = peers

    def _post_receives(self, peer: int, num_nodes: int) -> None:
        width = self._mine.stop - self._mine.start
        if width:
            parts = [self._exchange.take_scratch(self._nodes[0].dtype, width) for _ in range(num_nodes)]
            self._received[peer] = parts
            for number, part in enumerate(parts):
                self._receive(part, peer, self._tag + number * self._num_pieces, self._receives)
        if self._is_broad:
            return
        # A peer sends its slice of the result only after it has received our part of it: the memory is free by then.
        self._receive(self._nodes[0][self._slices[peer]], peer, self._result_tag, self._gathers)

    def _send(self, data: Tensor, peer: int, tag: int) -> None:
        for number, piece in enumerate(torch.split(data, self._piece) if data.numel() else ()):
            work = dist.isend(piece, peer, tag=tag + number)
            assert work is not None
            self._sends.append(work)

    def _receive(self, data: Tensor, peer: int, tag: int, works: list[dist.Work]) -> None:
        for number, piece in enumerate(torch.split(data, self._piece) if data.numel() else ()):
            work = dist.irecv(piece, peer, tag=tag + number)
            assert work is not None
            works.append(work)

    def add(self) -> None:
        """Wait for the peers' nodes, sum this rank's slice, and start distributing the result."""
        self._wait(self._receives)
        if self._is_broad:  # the sum overwrites the memory being sent
            self._wait_sent()
        result = self._nodes[0][self._mine]
        if result.numel():

            def add(left: Tensor, right: Tensor) -> Tensor:
                return torch.add(left, right, out=right if right is result else left)

            by_rank = {**self._received, self._exchange.rank: [result, *(node[self._mine] for node in self._nodes[1:])]}
            values = (part for _, parts in sorted(by_rank.items()) for part in parts)
            total = sum_subtrees(self._exchange.roots, values, add)
            assert total is result
            for peer in () if self._is_broad else self._peers:
                self._send(result, peer, self._result_tag)
        for parts in self._received.values():
            for part in parts:
                self._exchange.give_back(part)
        self._received = {}

    def finish(self) -> None:
        """Wait for the other slices of the sum, and for all sends."""
        self._wait(self._gathers)
        self._wait_sent()
        if self._on_gpu is not None:
            self._on_gpu[0].copy_(self._nodes[0])

    def _wait_sent(self) -> None:
        self._wait(self._sends)
        self._sends = []

    def _wait(self, works: list[dist.Work]) -> None:
        if not works:
            return
        began_s = time.perf_counter()
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            if not has_timed_out(error):
                raise
            raise PeerError(
                f"another rank did not reach the end of this phase within the timeout ({error}): it may be stuck (loading "
                "data, say), or have left its loop over batch.shards."
            ) from error
        self._exchange.waited_s += time.perf_counter() - began_s
