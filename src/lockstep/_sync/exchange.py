"""Summing nodes of the tree over processes, in the rounds of ``plan.rounds``: each rank sums slices
of all nodes, and the slices of the result go back the same way.

For one node per rank the traffic is that of a ring all-reduce. Where it costs no more (two ranks),
or hardly more (short tensors), every rank sends whole nodes instead, and nothing has to go back:
half as many messages.

Messages carry tags, so they match in whatever order the ranks send them; collectives would not.
(Gloo matches collectives by the order in which they are issued, which differs between ranks here.)
Between machines, long messages are split into pieces that are all posted before any is waited
for, since Gloo does not send one long message both ways at the same time. Within a machine that
would only cost time.

If the gradients of a phase are short, the buckets that earlier phases had are deferred to one
message with the phase's weights and values (``gather``).

One exchange of a tensor of n elements among four ranks, which are one round (each box is n/4)::

    rank 0 has  [a][b][c][d]     sends b to 1, c to 2, d to 3     sums a of all ranks, in the tree
    rank 1 has  [a][b][c][d]     sends a to 0, c to 2, d to 3     sums b
    rank 2 has  [a][b][c][d]     sends a to 0, b to 1, d to 3     sums c
    rank 3 has  [a][b][c][d]     sends a to 0, b to 1, c to 2     sums d
    way back                     each sends its sum to the three others

A rank sends 3 messages of n/4 elements on each way: 2 (1 - 1/4) n in all, as a ring does, in 2
waits instead of 6. With two ranks, whole tensors are n elements in 1 wait, and slices n/2 + n/2 in
2.

Every rank runs the same operations in the same order, which is a function of the sequence of
``start`` and ``finish`` alone::

    start 1   post 1.1
    start 2   post 2.1
    start 3   post 3.1                     wait 1.1, post 1.2 (_LAG = 2: the two newest do not wait)
    start 4   post 4.1                     wait 1.2, post 1.3; wait 2.1, post 2.2
    finish    wait 1.3 ...

As each message is posted before any rank waits for it in this order, the rank that is furthest
behind can always proceed. The lag is what overlaps communication with the backward pass. With no
lag, each bucket would stop the backward pass until the slowest rank has filled the same bucket. If
nothing waited before ``finish``, later rounds would begin only after the backward pass, and the
memory that messages are received into would be in use for all buckets together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep._base.errors import PeerError
from lockstep._plan.rounds import Roots, Round, bases, plan_rounds
from lockstep._plan.tree import Node, fold, sum_siblings, sum_subtrees
from lockstep._sync.single_message import gather_in_one_message
from lockstep._world.comm.waiter import has_timed_out

_UNIT = 16  # elements: slices begin at multiples of 64 bytes of float32
# Pieces between machines: short enough for both directions to be busy, long enough for few sends,
# of which one of 256 KiB takes 0.3 ms of the calling thread (docs/internals/exact-sum.md).
_PIECE_BYTES = 512 << 10
# Up to here whole nodes are sent in every round: a message costs more for its latency than for its
# bytes, and no way back halves the number of messages.
_SHORT_BYTES = 64 << 10
_LAG = 2  # exchanges started before the oldest is waited for
# Lower tags are left to the user, and ``world.comm.short`` uses those from 2**30 + 2**28 on. Two
# phases alternate between two ranges: a rank that has finished a phase may post messages of the
# next one while another still waits in the first. It cannot be two phases ahead, because a phase
# ends with the weights and values of all ranks. (Today's Gloo delivers messages of one tag in the
# order in which they were sent, so that one range would do; nothing promises that.) Tags are C
# ints: 2**30 + 2 * 2**24 < 2**31.
_FIRST_TAG = 1 << 30
_TAGS_PER_PHASE = 1 << 24


def split(span: range, num_slices: int) -> list[range]:
    """Returns nearly equal, aligned slices of a range of elements. The first is the longest; the
    last ones may be empty."""
    width = -(-len(span) // (_UNIT * num_slices)) * _UNIT
    return [span[index * width : (index + 1) * width] for index in range(num_slices)]


class Exchange:
    """Sums of flat tensors over the ranks, several at a time. Every rank must make the same calls
    in the same order.

    Args:
        rank: this process's rank in the default group.
        ranks_per_machine: number of consecutive ranks on each machine; 1 if machines differ in it.
        between_machines: whether any messages go over a network.
    """

    def __init__(self, rank: int, *, ranks_per_machine: int = 1, between_machines: bool = False) -> None:
        self.rank = rank
        self.waited_s = 0.0
        """Seconds that this rank has waited for others since this was last set to 0."""
        self.piece_bytes = _PIECE_BYTES if between_machines else 1 << 40
        self.roots: Roots = [[]]
        """The subtrees of each rank, in rank order."""
        self.rounds: list[Round] = []
        self.defers = False
        """Whether started exchanges wait for ``gather``."""
        self._ranks_per_machine = ranks_per_machine
        self._tag = _FIRST_TAG
        self._underway: list[Iterator[None]] = []
        """The exchanges that are not complete, in the order in which they were started. Each pauses
        before it waits for other ranks."""
        self._deferred: list[list[Tensor]] = []
        """The nodes that ``gather`` will send."""
        self._scratch: dict[tuple[torch.dtype, int], list[Tensor]] = {}
        """Free memory to receive into, by dtype and length. A script that freezes other layers in
        every step has other lengths in each."""
        self._num_steps = 0
        self._last_used: dict[tuple[torch.dtype, int], int] = {}
        """The newest step that has received into the memory of each key of ``_scratch``."""

    def begin_step(self) -> None:
        """Begins a step: frees the memory that neither of the two steps before it has received
        into."""
        self._num_steps += 1
        for key in [key for key, step in self._last_used.items() if step < self._num_steps - 2]:
            del self._scratch[key], self._last_used[key]

    def begin_phase(self, phase: int, roots: Roots, *, defers: bool = False) -> None:
        """Begins a phase.

        Args:
            phase: index of the phase within this launch, the same on every rank.
            roots: the subtrees of ranks 0, 1, ...
            defers: whether exchanges started before ``gather`` are deferred to it. If so, it must
                be called.
        """
        if roots is not self.roots:
            self.roots = roots
            self.rounds = plan_rounds(self.rank, roots, bases(len(roots), self._ranks_per_machine))
        self.defers, self._deferred = defers, []
        self._tag = _FIRST_TAG + phase % 2 * _TAGS_PER_PHASE

    def start(self, nodes: list[Tensor]) -> None:
        """Starts summing flat tensors over all ranks; after ``finish`` the sum is in ``nodes[0]``.
        Waits for other ranks only in exchanges that were started two or more calls before.

        Args:
            nodes: one tensor for each of this rank's subtrees, in order: shape ``(n,)``, the same
                dtype and n on every rank.
        """
        if self.defers:
            self._deferred.append(nodes)
            return
        self._underway.append(_Sum(self, nodes).stages())
        self._advance(self._underway[-1:])
        if len(self._underway) > _LAG:
            self._advance(self._underway[:-_LAG])

    def finish(self) -> None:
        """Waits until all started exchanges are complete.

        Raises:
            PeerError: a rank did not take part within the timeout.
        """
        while self._underway:
            self._advance(self._underway)

    def _advance(self, exchanges: Sequence[Iterator[None]]) -> None:
        """Brings some of the exchanges to where they next wait for other ranks."""
        # An exchange has as many stages on every rank, so it ends on all of them in the same call.
        ended = [stages for stages in exchanges if next(stages, "ended") == "ended"]
        self._underway = [stages for stages in self._underway if stages not in ended]

    def gather(self, row: list[float]) -> list[list[float]]:
        """Gathers a row of numbers from each rank, and completes the deferred exchanges, in one
        collective.

        Args:
            row: numbers, of equal length on every rank.

        Returns:
            The rows by rank.
        """
        deferred, self._deferred, self.defers = self._deferred, [], False
        # Padded to the rank with the most nodes, since an all-gather takes rows of one length. The
        # padding is not added to anything: ``values`` leaves it out.
        most_nodes = max(map(len, self.roots))
        padded = [node for nodes in deferred for node in (*nodes, *[torch.zeros_like(nodes[0])] * (most_nodes - len(nodes)))]
        rows, gathered = gather_in_one_message(row, padded)
        for index, nodes in enumerate(deferred):
            by_node = gathered[index * most_nodes :]
            values = (by_node[node][rank] for rank, roots in enumerate(self.roots) for node in range(len(roots)))
            nodes[0].copy_(sum_subtrees(self.roots, values, Tensor.add_))
        return rows

    # For _Sum

    def reserve_tags(self, messages: int, pieces: int) -> range:
        """Reserves tags, unique in this phase, and returns the first tag of each message. Every
        further piece of a message has the next tag."""
        first = self._tag
        self._tag += messages * pieces
        return range(first, self._tag, pieces)

    def take_scratch(self, dtype: torch.dtype, length: int) -> Tensor:
        """Takes memory to receive into."""
        key = (dtype, length)
        self._last_used[key] = self._num_steps
        free = self._scratch.setdefault(key, [])
        return free.pop() if free else torch.empty(length, dtype=dtype)

    def give_back(self, scratch: Tensor) -> None:
        """Takes back memory for reuse."""
        self._scratch[scratch.dtype, scratch.numel()].append(scratch)


class _Sum:
    """One sum over the ranks: the messages of a ``start``."""

    def __init__(self, exchange: Exchange, nodes: list[Tensor]) -> None:
        self._exchange = exchange
        self._on_gpu = nodes if not nodes[0].is_cpu and exchange.rounds else None
        # Gloo sends from CPU memory only: tensors on a GPU are copied there and back.
        self._nodes = nodes if self._on_gpu is None else [node.cpu() for node in nodes]
        self._result = self._nodes[0]
        """The slice of the first node into which this rank's sum is written. (So the slices of the
        result are in place in ``nodes[0]``, and the way back receives next to them.)"""
        self._works: list[dist.Work] = []
        self._scratch: list[Tensor] = []
        length, bytes_each = nodes[0].numel(), nodes[0].element_size()
        self._is_whole = len(exchange.roots) == 2 or length * bytes_each <= _SHORT_BYTES
        self._piece = exchange.piece_bytes // bytes_each
        self._tags: list[range] = []
        """The first tag of every message of each round: of each subtree, and of the result."""
        # Reserved for all rounds now, while all ranks do so in the order of starts. Later, the
        # order in which exchanges advance would decide the numbers.
        for round_ in exchange.rounds:
            length = length if self._is_whole else len(split(range(length), len(round_.members))[0])
            num_pieces = max(1, -(-length // self._piece))
            self._tags.append(exchange.reserve_tags(round_.most_nodes + 1, num_pieces))

    def stages(self) -> Iterator[None]:
        """Takes the sum, pausing before each wait for other ranks."""
        rank, rounds = self._exchange.rank, self._exchange.rounds
        span = range(self._result.numel())
        stack = [Node(*root, node) for root, node in zip(self._exchange.roots[rank], self._nodes, strict=True)]
        way_back = []
        for round_, tags in zip(rounds, self._tags, strict=True):
            members = round_.members
            spans = [span] * len(members) if self._is_whole else split(span, len(members))
            slices = [slice(each.start - span.start, each.stop - span.start) for each in spans]
            mine = members.index(rank)
            # Each rank begins with another peer, to spread the load.
            peers = [*range(mine + 1, len(members)), *range(mine)]
            values = {mine: [node.value[slices[mine]] for node in stack]}
            # Receives first: a peer's message is delivered only once its receive is posted.
            for peer in peers:
                values[peer] = self._receive_nodes(round_, peer, len(spans[mine]), tags)
            for peer in peers:
                for node, tag in zip(stack, tags, strict=False):
                    self._send(node.value[slices[peer]], members[peer], tag)
            yield
            self._wait()
            result_index = next(index for index, node in enumerate(stack) if node.value is self._result)
            self._result = values[mine][result_index]
            # In member order, which is shard order, and not in the order of arrival.
            in_order = (value for peer in range(len(members)) for value in values[peer])
            stack = sum_siblings(round_.roots, in_order, self._add)
            way_back.append((members, tags[-1], spans, mine, peers))
            span = spans[mine]
        total = fold(stack, self._add)
        assert total is self._result
        for scratch in self._scratch:
            self._exchange.give_back(scratch)
        for members, tag, spans, mine, peers in () if self._is_whole else reversed(way_back):
            # A peer sends its slice of the result only after it has received our slice of its
            # nodes: the memory is free by then.
            for peer in peers:
                self._receive(self._of_result(spans[peer]), members[peer], tag)
            for peer in peers:
                self._send(self._of_result(spans[mine]), members[peer], tag)
            yield
            self._wait()
        if self._on_gpu is not None:
            self._on_gpu[0].copy_(self._nodes[0])

    def _of_result(self, span: range) -> Tensor:
        return self._nodes[0][span.start : span.stop]

    def _add(self, left: Tensor, right: Tensor) -> Tensor:
        # In place, in either operand: the sum has the same bits, and must end in ``_result``.
        return torch.add(left, right, out=right if right is self._result else left)

    def _receive_nodes(self, round_: Round, peer: int, length: int, tags: range) -> list[Tensor]:
        received = [self._exchange.take_scratch(self._nodes[0].dtype, length) for _ in round_.roots[peer]]
        for data, tag in zip(received, tags, strict=False):
            self._receive(data, round_.members[peer], tag)
        self._scratch += received
        return received

    def _send(self, data: Tensor, peer: int, tag: int) -> None:
        for number, piece in enumerate(torch.split(data, self._piece) if data.numel() else ()):
            work = dist.isend(piece, peer, tag=tag + number)
            assert work is not None
            self._works.append(work)

    def _receive(self, data: Tensor, peer: int, tag: int) -> None:
        for number, piece in enumerate(torch.split(data, self._piece) if data.numel() else ()):
            work = dist.irecv(piece, peer, tag=tag + number)
            assert work is not None
            self._works.append(work)

    def _wait(self) -> None:
        """Waits for what was posted. (A peer that has sent its slice has posted to receive
        ours.)"""
        began_s = time.perf_counter()
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as error:
            if not has_timed_out(error):
                raise
            raise PeerError(
                f"timed out: another rank did not send its gradients ({error}). It may be stuck (for example in data "
                "loading) or have left its loop over batch.shards. Run `lockstep stacks` during the hang to see where.",
                code="phase-timeout",
            ) from error
        self._works = []
        self._exchange.waited_s += time.perf_counter() - began_s
