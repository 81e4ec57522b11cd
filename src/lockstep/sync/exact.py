"""Gradients added up in one fixed tree over shard numbers: equal to the bit at every number of processes.

Every shard's gradients are a leaf: weighted, in float32, with ABSENT where it has none. A process adds its leaves up as the
tree says (``plan.tree``), and on its last shard sends each bucket on its way (``sync.exchange``) as soon as the backward
pass has filled it. Weights and buffers go through the same tree. One process runs the same code, and has nobody to send to.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from lockstep.errors import ModelError, UsageError
from lockstep.plan.shards import MicroStep, block
from lockstep.plan.tree import Node, push, roots
from lockstep.sync.bucket_sum import BucketSum
from lockstep.sync.buckets import Bucket, keep_freed_memory, make_buckets
from lockstep.sync.buffers import ShardBuffers
from lockstep.sync.exchange import Exchange, Roots
from lockstep.sync.gradients import Gradients, check_total, put_back, set_aside
from lockstep.sync.ordered import OrderedExchange
from lockstep.sync.start import take_from_rank_0


class _Weights:
    """The sum of the weights that the script gives, for one backward call of the body."""

    def __init__(self) -> None:
        self.leaf = 0.0
        self.stack: list[Node[float]] = []

    def add(self, turn: MicroStep, weight: float) -> None:
        """A turn's weight."""
        self.leaf += weight
        if turn.ends_shard:
            push(self.stack, Node(turn.shard, 1, self.leaf), lambda left, right: left + right)
            self.leaf = 0.0


class _Learnt:
    """What steps in which all ranks took part have shown to all of them alike: what is worth sending at once."""

    def __init__(self) -> None:
        self.buckets: dict[int, set[int]] = {}
        """For each backward call of the body, the buckets that some shard had gradients in."""
        self.owners: set[int] = set()
        """Modules whose buffers some shard has changed."""
        self.calls: set[int] = set()
        """Backward calls of which the ranks have told each other whether they have weights."""


class Exact:
    """The strategy ``exact``.

    Args:
        rank: of this process.
        world_size: number of processes.
        num_shards: V of the run.
        between_hosts: whether some messages go over a network.
        cards: the devices whose gradients are exchanged by collectives (NCCL); none: everything goes by tags (Gloo).
    """

    forward_is_collective = False
    """See Sync."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        num_shards: int,
        *,
        between_hosts: bool = False,
        cards: Sequence[torch.device] = (),
    ) -> None:
        self.replaced: dict[Parameter, Parameter] = {}
        self._rank, self._world_size, self._num_shards = rank, world_size, num_shards
        self._exchange = Exchange(rank, between_hosts=between_hosts)
        self._on_cards = {card: OrderedExchange(rank, card) for card in cards}
        self._names: dict[Parameter, str] = {}
        self._buckets: list[Bucket] = []
        self._layout: list[tuple[bool, torch.dtype]] = []
        """Whether it learns and what it is made of, for each parameter, when the buckets were made."""
        self._hooks: list[RemovableHandle] = []
        self._missing: list[set[int]] = []
        """For each bucket, the places whose gradients the backward pass at hand has not yet brought."""
        self._buffers = ShardBuffers()
        self._learnt = _Learnt()
        self._learnt_in: dict[tuple[tuple[bool, torch.dtype], ...], dict[int, set[int]]] = {}
        """What was learnt about buckets, by layout."""
        self._turn: MicroStep | None = None
        self._calls = 0
        self._weighted: dict[int, bool] = {}
        self._listening = False
        self._one_at_a_time = threading.Lock()
        """Autograd has a thread for each card, and the parts of a model may be on several."""
        self._share = 1.0
        keep_freed_memory()
        self._forget_step()

    def _forget_step(self) -> None:
        self._sums: dict[tuple[int, int], BucketSum] = {}
        """By backward call and bucket."""
        self._weights: dict[int, _Weights] = {}
        self._changes: list[Node[dict[int, Tensor]]] = []
        self._shard_samples = 0
        self._carried: Gradients = {}
        """Gradients from before the step, out of reach of a zero_grad() that is not meant for them."""

    # The protocol

    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """See Sync."""
        if self._world_size > 1:
            take_from_rank_0(model)
        for name, parameter in model.named_parameters():
            self._names.setdefault(parameter, name)
        self._buffers.attach(model)
        self._lay_out()
        return model

    def begin(self, turn: MicroStep) -> None:
        """See Sync."""
        self._turn = turn
        self._calls = 0
        if turn.index == 0:
            self._buffers.begin_step()
            if _layout_of(self._names) != self._layout:
                self._lay_out()
            roots = _roots(turn.num_active_ranks, turn.num_filled_shards, self._world_size, self._num_shards)
            self._exchange.begin_step(turn.step, roots)
            for exchange in self._on_cards.values():
                exchange.begin_step(roots)
        elif turn.begins_shard:
            self._buffers.restart_shard()
        if turn.begins_shard:
            self._shard_samples = 0

    def backward(self, loss: Tensor, weight: float | None, **options: Any) -> None:
        """See Sync."""
        turn = self._turn
        assert turn is not None
        call, self._calls = self._calls, self._calls + 1
        self._check(turn, call, weighted=weight is not None, **options)
        carried = set_aside(self._names)
        with torch.no_grad():
            self._note_buffers(turn, call)
            if weight is not None:
                self._weights.setdefault(call, _Weights()).add(turn, weight)
            header = self._send_header(turn, call, weighted=weight is not None) if turn.is_last else []
            changes = self._send_buffers(turn) if turn.is_last and call == 0 else {}
        self._run_backward(loss, turn, call, turn.fraction if weight is None else weight, options)
        with torch.no_grad():
            if call == 0 and turn.ends_shard:
                self._buffers.rewind()  # also what checkpoint() has run again in the backward pass
            if not turn.is_last:
                self._carried.update(carried)
                return
            sent = self._send_rest(call)
            self._finish()
            total = self._read_header(turn, header, changes)
            if call == 0:
                self._buffers.apply(changes)
            if total is not None:
                check_total(total, turn.step)
                for index in sent:
                    self._sums[call, index].stack[0].value.data.div_(total)
            for index in sent:
                self._hand_out(index, self._sums.pop((call, index)))
            put_back(self._carried)
            put_back(carried)
            self._carried = {}
            self._learn(turn, call, sent, changes)

    def absent(self, num_active_ranks: int) -> None:
        """See Sync."""

    def end_step(self) -> None:
        """See Sync."""
        self._buffers.rewind()
        for added in self._sums.values():
            added.clear()
        self._forget_step()
        self._turn = None

    def drop(self) -> None:
        """See Sync."""
        put_back(self._carried)
        self.end_step()

    def close(self) -> None:
        """See Sync."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # The layout

    def _lay_out(self) -> None:
        """Put the parameters into buckets, and have each tell when its gradient is there.

        Those that do not learn now, and may be thawed in the loop's body, are in buckets of their own: as long as they
        have no gradients, nothing is kept or sent for them.
        """
        self.close()
        self._layout = _layout_of(self._names)
        can_learn = [p for p in self._names if p.is_floating_point() or p.is_complex()]
        self._buckets = make_buckets([p for p in can_learn if p.requires_grad])
        self._buckets += make_buckets([p for p in can_learn if not p.requires_grad])
        self._missing = [set() for _ in self._buckets]
        # By layout: a rank that was absent may not have seen each change, and must know what the others know.
        self._learnt.buckets = self._learnt_in.setdefault(tuple(self._layout), {})
        for index, bucket in enumerate(self._buckets):
            for place, parameter in enumerate(bucket.parameters):
                learns = parameter.requires_grad
                parameter.requires_grad_(True)  # a frozen one takes no hook, but keeps it
                arrived = functools.partial(self._arrived, index, place)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(arrived))  # type: ignore[no-untyped-call]
                parameter.requires_grad_(learns)

    # The backward pass

    def _check(self, turn: MicroStep, call: int, *, weighted: bool, **options: Any) -> None:
        if self._weighted.setdefault(call, weighted) != weighted:
            raise UsageError(
                "backward() was given a weight for some shards and none for others: token counts and sample counts cannot "
                "be added up. Give every shard a weight, or none."
            )
        if options.get("create_graph"):
            raise UsageError(
                "backward(create_graph=True) with strategy 'exact': gradients that have met are plain numbers, which nothing "
                "can be derived from. For a penalty on gradients use torch.autograd.grad(..., create_graph=True) in the loss."
            )
        if call > 0 and turn.ends_shard and (changed := self._buffers.touched()):
            raise UsageError(
                f"a forward pass between two backward() calls of one step changed buffers ({', '.join(changed[:4])}): they "
                "begin every step alike for all shards, and are combined in the first backward() call, so what comes "
                "later would depend on the number of processes. Run all forward passes that train before the first "
                "backward(), or leave shards= out."
            )

    def _run_backward(self, loss: Tensor, turn: MicroStep, call: int, share: float, options: dict[str, Any]) -> None:
        for index, bucket in enumerate(self._buckets):
            self._missing[index] = set(range(len(bucket.parameters)))
            if (call, index) not in self._sums:
                self._sums[call, index] = BucketSum(bucket, self._own_before(turn))
        self._call, self._share = call, share
        self._at_once = sorted(self._known(turn).buckets.get(call, ())) if turn.is_last else []
        self._num_sent = 0
        self._listening = True
        try:
            loss.backward(**options)  # type: ignore[no-untyped-call]
        finally:
            self._listening = False
        with torch.no_grad():
            for index, missing in enumerate(self._missing):
                if missing:
                    self._missing[index] = set()
                    self._fill(index)

    def _own_before(self, turn: MicroStep) -> range:
        """This process's shards whose turns in this step are over."""
        return range(block(self._rank, self._world_size, self._num_shards).start, turn.shard)

    def _arrived(self, index: int, place: int, parameter: Parameter) -> None:
        """A gradient is there: into its bucket, before it leaves the cache. (Called by autograd, in the backward pass.)"""
        if self._listening:
            with self._one_at_a_time:
                self._take(index, place, parameter)

    def _take(self, index: int, place: int, parameter: Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            raise ModelError(
                f"a hook of the script's own took the gradient of {self._names[parameter]!r} away in the backward pass, before "
                "it met those of the other shards: act after team.backward(), when the step ends"
            )
        if gradient.is_sparse:
            raise ModelError(
                f"parameter {self._names[parameter]!r} has a sparse gradient, which has no place in the fixed tree: use a "
                "dense one (Embedding(sparse=False)), or leave shards= out, or use strategy='ddp'"
            )
        missing = self._missing[index]
        if not missing:
            raise ModelError(
                f"the gradient of {self._names[parameter]!r} came in several parts in one backward pass, after it had been "
                "sent: checkpoint(..., use_reentrant=True) over parameters that are used elsewhere too does that. Use "
                "use_reentrant=False."
            )
        if self._share != 0:  # without weight a shard is absent: its gradient may be NaN, of a mean over nothing
            self._sums[self._call, index].take(place, gradient, self._share)
        missing.discard(place)
        if not missing:
            self._fill(index)

    def _fill(self, index: int) -> None:
        """A bucket has all gradients of this backward pass; on the last turn, send what is whole and next in order."""
        turn = self._turn
        assert turn is not None
        if turn.ends_shard:
            self._sums[self._call, index].end_shard(turn.shard)
        while self._num_sent < len(self._at_once) and not self._missing[self._at_once[self._num_sent]]:
            self._start(self._nodes(self._call, self._at_once[self._num_sent]))
            self._num_sent += 1

    def _start(self, nodes: list[Tensor]) -> None:
        """Begin to add up tensors over all ranks; ``nodes[0]`` becomes the sum."""
        turn = self._turn
        assert turn is not None
        # Collectives need all ranks; in a step without some of them the others meet by tags.
        on_card = self._on_cards.get(nodes[0].device) if turn.num_active_ranks == self._world_size else None
        (on_card or self._exchange).start(nodes)

    def _finish(self) -> None:
        self._exchange.finish()
        for exchange in self._on_cards.values():
            exchange.finish()

    def _nodes(self, call: int, index: int) -> list[Tensor]:
        added = self._sums[call, index]
        added.make_whole()
        return [node.value.data for node in added.stack]

    def _send_rest(self, call: int) -> list[int]:
        """Send the buckets of which it was not known that some shard has gradients in them. All that were sent."""
        assert self._num_sent == len(self._at_once)
        rest = [index for index in range(len(self._buckets)) if index not in self._at_once]
        if not rest:
            return self._at_once
        flags = torch.tensor([float(bool(self._sums[call, index].used)) for index in rest])
        found = self._exchange.sum(self._spread(flags)).tolist()
        more = [index for index, count in zip(rest, found, strict=True) if count > 0]
        for index in more:
            self._start(self._nodes(call, index))
        for index in rest:
            if index not in more:
                self._sums.pop((call, index)).clear()
        return [*self._at_once, *more]

    def _hand_out(self, index: int, added: BucketSum) -> None:
        """Make the sum of a bucket the gradients of its parameters: of those that some shard had one of."""
        bucket, flat = self._buckets[index], added.stack[0].value
        for node in added.stack[1:]:
            bucket.give_back(node.value)
        places: Sequence[int] = range(len(bucket.parameters))
        if len(added.used) < len(places):
            places = [place for place, count in enumerate(flat.counts.tolist()) if count > 0]
        for place, view in zip(places, bucket.lend(flat, places), strict=True):
            parameter = bucket.parameters[place]
            parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)

    # What else goes through the tree

    def _note_buffers(self, turn: MicroStep, call: int) -> None:
        if call > 0:
            return
        self._shard_samples += turn.num_samples
        if turn.ends_shard:
            leaf = self._buffers.changes(self._shard_samples / turn.step_samples, is_lowest_shard=turn.shard == 0)
            push(self._changes, Node(turn.shard, 1, leaf), _add_changes)

    def _send_buffers(self, turn: MicroStep) -> dict[int, Tensor]:
        """Begin to add up the changes of buffers that are known to change; to be read after ``finish``."""
        known = sorted(self._known(turn).owners)
        return self._start_buffers(known)

    def _start_buffers(self, owners: list[int]) -> dict[int, Tensor]:
        by_device: dict[torch.device, list[int]] = {}
        for owner in owners:
            by_device.setdefault(self._buffers.device(owner), []).append(owner)
        sums: dict[int, Tensor] = {}
        for here in by_device.values():
            absent = {owner: self._buffers.absent(owner) for owner in here}
            nodes = [torch.cat([node.value.get(owner, absent[owner]) for owner in here]) for node in self._changes]
            self._start(nodes)
            parts = torch.split(nodes[0], [absent[owner].numel() for owner in here])
            sums.update(zip(here, parts, strict=True))
        return sums

    def _send_header(self, turn: MicroStep, call: int, *, weighted: bool) -> list[Tensor]:
        """Begin to tell the others the weights, and what buffers have changed unexpectedly."""
        known = self._known(turn)
        others = self._buffers.num_owners - len(known.owners) if call == 0 else 0
        if not weighted and not others and call in known.calls:
            return []
        header = self._spread(torch.zeros(2 + self._buffers.num_owners, dtype=torch.float64))
        header[0][1] = float(weighted)
        if call == 0:
            for node in self._changes:
                header[0][[2 + owner for owner in node.value]] = 1.0
        if weighted:
            for tensor, weight in zip(header, self._weights.pop(call).stack, strict=True):
                tensor[0] = weight.value
        self._exchange.start(header)
        return header

    def _read_header(self, turn: MicroStep, header: list[Tensor], changes: dict[int, Tensor]) -> float | None:
        """The sum of the weights, if there are any; adds to ``changes`` those of other buffers that have changed."""
        if not header:
            return None
        total, num_weighted, *changed = header[0].tolist()
        if num_weighted not in (0, turn.num_active_ranks):
            raise UsageError(
                f"{num_weighted:.0f} of {turn.num_active_ranks} ranks gave backward() a weight: all shards must give one, or "
                "none may"
            )
        more = self._start_buffers([owner for owner, flag in enumerate(changed) if flag and owner not in changes])
        self._finish()
        changes.update(more)
        return total if num_weighted else None

    def _spread(self, values: Tensor) -> list[Tensor]:
        """A tensor for each subtree of this process: ``values`` for the first, and zeros."""
        num_nodes = len(self._exchange.roots[self._rank])
        return [values, *(torch.zeros_like(values) for _ in range(num_nodes - 1))]

    # What all ranks know alike

    def _known(self, turn: MicroStep) -> _Learnt:
        """What may be counted on in this step: nothing if ranks are absent, since they have not learnt all."""
        return self._learnt if turn.num_active_ranks == self._world_size else _Learnt()

    def _learn(self, turn: MicroStep, call: int, buckets: Iterable[int], owners: Iterable[int]) -> None:
        if turn.num_active_ranks == self._world_size:
            self._learnt.buckets.setdefault(call, set()).update(buckets)
            self._learnt.owners.update(owners)
            self._learnt.calls.add(call)


def _layout_of(parameters: Iterable[Parameter]) -> list[tuple[bool, torch.dtype]]:
    return [(parameter.requires_grad, parameter.dtype) for parameter in parameters]


def _add_changes(left: dict[int, Tensor], right: dict[int, Tensor]) -> dict[int, Tensor]:
    for owner, change in right.items():
        left[owner] = left[owner] + change if owner in left else change
    return left


@functools.lru_cache(maxsize=256)
def _roots(num_ranks: int, num_filled: int, world_size: int, num_shards: int) -> Roots:
    """For each rank that takes part, the subtrees of its shards that are not empty."""
    blocks = (block(rank, world_size, num_shards) for rank in range(num_ranks))
    return [roots(range(own.start, min(own.stop, num_filled))) for own in blocks]
