"""Gradients added up in one fixed tree over shard numbers: equal to the bit at every number of processes.

Every shard's gradients are a leaf: weighted, in float32, with ABSENT where it has none. A process adds its leaves up as the
tree says (``plan.tree``), and on its last shard sends each bucket on its way (``sync.exchange``) as soon as the backward
pass has filled it. Weights and buffers go through the same tree. One process runs the same code, and has nobody to send to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from lockstep.errors import ModelError, UsageError
from lockstep.plan.shards import MicroStep, block
from lockstep.plan.tree import Node, push, roots
from lockstep.sync.buckets import ABSENT, Bucket, Flat, make_buckets
from lockstep.sync.buffers import ShardBuffers
from lockstep.sync.exchange import Exchange, Roots
from lockstep.sync.gradients import Gradients, check_total, put_back, set_aside


class _Sum:
    """What a process has added up of one bucket so far, for one backward call of the body."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.leaf: Flat | None = None
        """The shard at hand: with ``accumulate``, over its turns so far."""
        self.stack: list[Node[Flat]] = []
        self.used = [False] * len(bucket.parameters)
        """Of which parameters one of this process's shards has a gradient."""

    def take(self, share: float) -> None:
        """Move the gradients that the parameters have into the leaf, weighted. A share of 0 is absence."""
        bucket, flat = self._bucket, self.leaf
        first = flat is None
        if flat is None:
            flat = self.leaf = bucket.take()
            flat.counts.fill_(1.0)
        for place, parameter in enumerate(bucket.parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None or share == 0:
                if first:
                    flat.views[place].fill_(ABSENT)
                    flat.counts[place] = 0.0
                continue
            self.used[place] = True
            view = flat.views[place]
            if gradient.dtype != view.dtype:  # 16-bit gradients are weighted in float32
                gradient = gradient.to(view.dtype)
            if first:
                torch.mul(gradient, share, out=view)
            else:
                view.add_(gradient.mul_(share))
                flat.counts[place] = 1.0

    def end_shard(self, shard: int) -> None:
        """The leaf is whole: put it into the tree."""
        if self.leaf is not None:
            push(self.stack, Node(shard, 1, self.leaf), self._add)
            self.leaf = None

    def _add(self, left: Flat, right: Flat) -> Flat:
        left.data.add_(right.data)
        self._bucket.give_back(right)
        return left

    def clear(self) -> None:
        """Forget it all."""
        flats = [node.value for node in self.stack] + ([] if self.leaf is None else [self.leaf])
        for flat in flats:
            self._bucket.give_back(flat)
        self.leaf, self.stack = None, []


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
    """

    def __init__(self, rank: int, world_size: int, num_shards: int) -> None:
        self._rank, self._world_size, self._num_shards = rank, world_size, num_shards
        self._exchange = Exchange(rank)
        self._names: dict[Parameter, str] = {}
        self._buckets: list[Bucket] = []
        self._trainable: list[bool] = []
        self._hooks: list[RemovableHandle] = []
        self._waiting: list[int] = []
        """For each bucket, how many gradients the backward pass at hand still has to bring."""
        self._buffers = ShardBuffers()
        self._learnt = _Learnt()
        self._turn: MicroStep | None = None
        self._calls = 0
        self._weighted: dict[int, bool] = {}
        self._listening = False
        self._share = 1.0
        self._forget_step()

    def _forget_step(self) -> None:
        self._sums: dict[tuple[int, int], _Sum] = {}
        """By backward call and bucket."""
        self._weights: dict[int, _Weights] = {}
        self._changes: list[Node[dict[int, Tensor]]] = []
        self._shard_samples = 0
        self._carried: Gradients = {}

    # The protocol

    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """See Sync."""
        if self._world_size > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), src=0)
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
            if [parameter.requires_grad for parameter in self._names] != self._trainable:
                self._lay_out()
            self._exchange.begin_step(turn.step, _roots_of_ranks(turn, self._world_size, self._num_shards))
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
            self._exchange.finish()
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
        """Put the parameters that learn into buckets, and have each tell when its gradient is there."""
        self.close()
        self._trainable = [parameter.requires_grad for parameter in self._names]
        self._buckets = make_buckets([parameter for parameter in self._names if parameter.requires_grad])
        self._waiting = [len(bucket.parameters) for bucket in self._buckets]
        self._learnt.buckets = {}
        for index, bucket in enumerate(self._buckets):
            arrived = functools.partial(self._arrived, index)
            for parameter in bucket.parameters:
                hook = parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
                self._hooks.append(hook)

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
            self._waiting[index] = len(bucket.parameters)
            if (call, index) not in self._sums:
                self._sums[call, index] = _Sum(bucket)
        self._share = share
        self._call = call
        self._at_once = sorted(self._known(turn).buckets.get(call, ())) if turn.is_last else []
        self._num_sent = 0
        self._listening = True
        try:
            loss.backward(**options)  # type: ignore[no-untyped-call]
        finally:
            self._listening = False
        with torch.no_grad():
            for index in range(len(self._buckets)):
                if self._waiting[index] > 0:
                    self._fill(index)

    def _arrived(self, index: int, parameter: Parameter) -> None:
        """A gradient is there. (Called by autograd, within the backward pass.)"""
        if not self._listening:
            return
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise ModelError(
                f"parameter {self._names[parameter]!r} has a sparse gradient, which has no place in the fixed tree: use a "
                "dense one (Embedding(sparse=False)), or leave shards= out and use strategy='ddp'"
            )
        self._waiting[index] -= 1
        if self._waiting[index] < 0:
            raise ModelError(
                f"the gradient of {self._names[parameter]!r} came in several parts in one backward pass, after it had been "
                "sent: checkpoint(..., use_reentrant=True) over parameters that are used elsewhere too does that. Use "
                "use_reentrant=False."
            )
        if self._waiting[index] == 0:
            missing = sum(p.grad is None for p in self._buckets[index].parameters)
            if missing:  # one came in several parts
                self._waiting[index] = missing
            else:
                self._fill(index)

    def _fill(self, index: int) -> None:
        """Move a bucket's gradients into the tree; on the last turn, send all that is whole and is next in order."""
        turn = self._turn
        assert turn is not None
        self._waiting[index] = 0
        added = self._sums[self._call, index]
        added.take(self._share)
        if turn.ends_shard:
            added.end_shard(turn.shard)
        while self._num_sent < len(self._at_once) and self._waiting[self._at_once[self._num_sent]] == 0:
            self._start(self._call, self._at_once[self._num_sent])
            self._num_sent += 1

    def _start(self, call: int, index: int) -> None:
        self._exchange.start([node.value.data for node in self._sums[call, index].stack])

    def _send_rest(self, call: int) -> list[int]:
        """Send the buckets of which it was not known that some shard has gradients in them. All that were sent."""
        assert self._num_sent == len(self._at_once)
        rest = [index for index in range(len(self._buckets)) if index not in self._at_once]
        if not rest:
            return self._at_once
        flags = torch.tensor([float(any(self._sums[call, index].used)) for index in rest])
        found = self._exchange.sum(self._spread(flags)).tolist()
        more = [index for index, count in zip(rest, found, strict=True) if count > 0]
        for index in more:
            self._start(call, index)
        for index in rest:
            if index not in more:
                self._sums.pop((call, index)).clear()
        return [*self._at_once, *more]

    def _hand_out(self, index: int, added: _Sum) -> None:
        """Make the sum of a bucket the gradients of its parameters: of those that some shard had one of."""
        bucket, flat = self._buckets[index], added.stack[0].value
        for node in added.stack[1:]:
            bucket.give_back(node.value)
        used = added.used if all(added.used) else [count > 0 for count in flat.counts.tolist()]
        places = [place for place, yes in enumerate(used) if yes]
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
            self._exchange.start(nodes)
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
        self._exchange.finish()
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


def _add_changes(left: dict[int, Tensor], right: dict[int, Tensor]) -> dict[int, Tensor]:
    for owner, change in right.items():
        left[owner] = left[owner] + change if owner in left else change
    return left


def _roots_of_ranks(turn: MicroStep, world_size: int, num_shards: int) -> Roots:
    return _roots(turn.num_active_ranks, turn.num_filled_shards, world_size, num_shards)


@functools.lru_cache(maxsize=256)
def _roots(num_ranks: int, num_filled: int, world_size: int, num_shards: int) -> Roots:
    """For each rank that takes part, the subtrees of its shards that are not empty."""
    blocks = (block(rank, world_size, num_shards) for rank in range(num_ranks))
    return [roots(range(own.start, min(own.stop, num_filled))) for own in blocks]
