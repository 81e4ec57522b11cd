"""Three ways to add gradients in a fixed tree over shards during the backward pass (prototypes, see exact-sum.md)."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

ALIGN = 16  # floats: 64 bytes
Part = tuple[int, int]  # a subtree: its first shard and its number of shards


# The tree


def adds(leaves: list[Part]) -> tuple[list[Part], list[tuple[int, int]]]:
    """Push leaves on the stack, merging whole subtrees: what is left, and the additions (into, from) by stack position."""
    stack: list[Part] = []
    done: list[tuple[int, int]] = []
    for leaf in leaves:
        stack.append(leaf)
        while len(stack) > 1 and stack[-1][1] == stack[-2][1] and stack[-2][0] % (2 * stack[-2][1]) == 0:
            start, size = stack[-2]
            done.append((len(stack) - 2, len(stack) - 1))
            stack[-2:] = [(start, 2 * size)]
    return stack, done


def block(rank: int, world: int, num_shards: int) -> range:
    """The shards of a rank."""
    return range(rank * num_shards // world, (rank + 1) * num_shards // world)


def parts_of(rank: int, world: int, num_shards: int) -> list[Part]:
    """The subtrees that a rank's shards add up to."""
    return adds([(shard, 1) for shard in block(rank, world, num_shards)])[0]


def fold(operands: list[Part]) -> list[tuple[int, int]]:
    """Additions (into, from), by operand number, that give the whole tree in operand 0."""
    stack: list[tuple[int, int, int]] = []
    done: list[tuple[int, int]] = []
    for number, (start, size) in enumerate(operands):
        stack.append((start, size, number))
        while len(stack) > 1 and stack[-1][1] == stack[-2][1] and stack[-2][0] % (2 * stack[-2][1]) == 0:
            right, left = stack.pop(), stack.pop()
            done.append((left[2], right[2]))
            stack.append((left[0], 2 * left[1], left[2]))
    while len(stack) > 1:
        right = stack.pop()
        done.append((stack[-1][2], right[2]))
    return done


# Memory


class Arena:
    """Flat memory by name, kept between steps and shared by contenders that never run at the same time."""

    def __init__(self) -> None:
        self._flats: dict[str, Tensor] = {}

    def take(self, name: str, numel: int) -> Tensor:
        """A flat tensor, 64-byte aligned; the same memory for the same name."""
        if name not in self._flats or self._flats[name].numel() < numel:
            self._flats[name] = torch.zeros(numel)
            assert self._flats[name].data_ptr() % 64 == 0
        return self._flats[name][:numel]


@dataclass(kw_only=True)
class Bucket:
    """Some parameters, last first, and their place in flat memory. One flag a parameter (was it used?) follows the slots."""

    params: list[int]
    offsets: list[int]
    start: int
    numel: int
    slice: int
    flags: int


def make_buckets(params: list[Parameter], world: int, limit_bytes: int, first_bytes: int) -> tuple[list[Bucket], int]:
    """Cut parameters, in reverse order, into buckets of about the given size. Each splits evenly into aligned slices."""
    buckets: list[Bucket] = []
    position = 0
    pending: list[int] = []

    def close() -> None:
        nonlocal position, pending
        start, offsets = position, []
        for index in pending:
            offsets.append(position)
            position += -(-params[index].numel() // ALIGN) * ALIGN
        flags = position
        used = position + len(pending) - start
        slice_ = -(-used // (world * ALIGN)) * ALIGN
        position = start + slice_ * world
        buckets.append(Bucket(params=pending, offsets=offsets, start=start, numel=slice_ * world, slice=slice_, flags=flags))
        pending = []

    filled = 0
    for index in reversed(range(len(params))):
        pending.append(index)
        filled += params[index].numel() * 4
        if filled >= (limit_bytes if buckets else first_bytes):
            close()
            filled = 0
    if pending:
        close()
    return buckets, position


# Own buckets, tagged sends and receives


class OwnBuckets:
    """Own buckets filled by post-accumulate-grad hooks; slices exchanged with tagged isend and irecv.

    Args:
        params: the model's parameters.
        rank: of this process.
        world: number of processes.
        num_shards: V.
        arena: where flat memory comes from.
        bucket_mib: size of a bucket.
        first_mib: size of the first bucket; 0: as the others.
        piece_kib: size of one message; 0: a whole slice.
        lag: bucket i - lag is finished when bucket i becomes ready; -1: all after the backward pass; -2: by a thread.
        api: "group" (ProcessGroup.send) or "dist" (dist.isend).
        fill: "hook" (each hook copies its gradient) or "bucket" (all are copied when the bucket is complete).
        fresh: take new flat memory every step.
        delay: longest sleep, in seconds, at random places.
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        rank: int,
        world: int,
        num_shards: int,
        arena: Arena,
        *,
        bucket_mib: float = 4,
        first_mib: float = 0,
        piece_kib: int = 0,
        lag: int = 1,
        api: str = "group",
        fill: str = "hook",
        fresh: bool = False,
        delay: float = 0,
    ) -> None:
        self.params = list(params)
        self.rank, self.world, self.num_shards = rank, world, num_shards
        self.lag, self.fill, self.fresh, self.delay, self.arena = lag, fill, fresh, delay, arena
        limit = int(bucket_mib * 2**20)
        self.buckets, self.numel = make_buckets(self.params, world, limit, int(first_mib * 2**20) or limit)
        self.bucket_of = {index: number for number, bucket in enumerate(self.buckets) for index in bucket.params}
        self.piece = piece_kib * 256 or self.numel
        self.parts = [parts_of(r, world, num_shards) for r in range(world)]
        self.shards = block(rank, world, num_shards)
        self.random = random.Random(rank)
        self.seconds = {"launch": 0.0, "wait": 0.0, "add": 0.0, "send": 0.0, "end": 0.0}
        self.pg: Any = dist.group.WORLD if world > 1 else None
        self._send: Callable[..., Any] = self._isend if api == "dist" else self.pg.send if self.pg else None
        self._recv: Callable[..., Any] = self._irecv if api == "dist" else self.pg.recv if self.pg else None
        self._lay_out()
        if lag == -2:
            self._jobs: queue.SimpleQueue[int] = queue.SimpleQueue()
            self._finished = threading.Semaphore(0)
            threading.Thread(target=self._serve, daemon=True).start()

    def _isend(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        return dist.isend(tensors[0], rank, tag=tag)

    def _irecv(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        return dist.irecv(tensors[0], rank, tag=tag)

    def _lay_out(self) -> None:
        depth = len(self.parts[self.rank])  # of the stack, which never is deeper than just before the last shard
        stack: list[Part] = []
        for shard in self.shards[:-1]:
            depth = max(depth, len(stack) + 1)
            stack = adds([*stack, (shard, 1)])[0]
        self.main = self.arena.take("main", self.numel)
        self.levels = [self.arena.take(f"level{d}", self.numel) for d in range(depth)] if len(self.shards) > 1 else []
        self.slots = [self._views(flat) for flat in [*self.levels, self.main]]
        self._plan()

    def _views(self, flat: Tensor) -> list[Tensor]:
        views: list[Tensor] = [flat] * len(self.params)
        for bucket in self.buckets:
            for index, offset in zip(bucket.params, bucket.offsets, strict=True):
                p = self.params[index]
                views[index] = flat.as_strided(p.size(), p.stride(), flat.storage_offset() + offset)
        return views

    def _part(self, k: int) -> Tensor:
        """The memory of this rank's part number k."""
        return self.main if k == len(self.parts[self.rank]) - 1 else self.levels[k]

    def _plan(self) -> None:
        """Work out every message and every addition once."""
        peers = [(self.rank + d) % self.world for d in range(1, self.world)]
        widest = max(len(parts) for parts in self.parts)
        most = max(-(-bucket.slice // self.piece) for bucket in self.buckets)

        def tag(number: int, phase: int, piece: int, k: int) -> int:
            return ((number * 2 + phase) * most + piece) * widest + k

        operands = [(r, k) for r in range(self.world) for k in range(len(self.parts[r]))]
        folding = fold([self.parts[r][k] for r, k in operands])
        foreign = sum(r != self.rank for r, _ in operands)
        staging = self.arena.take("staging", max(1, foreign * sum(bucket.slice for bucket in self.buckets)))
        self.sends: list[list[tuple[list[Tensor], int, int]]] = []
        self.receives: list[list[tuple[list[Tensor], int, int]]] = []
        self.gathers: list[list[tuple[list[Tensor], int, int]]] = []
        self.pieces: list[list[tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor, list[tuple[list[Tensor], int, int]]]]] = []
        self.num_foreign = foreign
        used = 0
        for number, bucket in enumerate(self.buckets):
            sends, receives, gathers, pieces = [], [], [], []
            for piece, low in enumerate(range(0, bucket.slice, self.piece)):
                size = min(self.piece, bucket.slice - low)
                for peer in peers:
                    at = bucket.start + peer * bucket.slice + low
                    for k in range(len(self.parts[self.rank])):
                        sends.append(([self._part(k)[at : at + size]], peer, tag(number, 0, piece, k)))
                    gathers.append(([self.main[at : at + size]], peer, tag(number, 1, piece, 0)))
                at = bucket.start + self.rank * bucket.slice + low
                result = self.main[at : at + size]
                memory: list[Tensor] = []
                for r, k in operands:
                    if r == self.rank:
                        memory.append(self._part(k)[at : at + size])
                    else:
                        memory.append(staging[used : used + size])
                        receives.append(([memory[-1]], r, tag(number, 0, piece, k)))
                        used += size
                sums = [(memory[a], memory[b], memory[a]) for a, b in folding]
                if sums:
                    sums[-1] = (*sums[-1][:2], result)
                pieces.append((sums, result, [([result], peer, tag(number, 1, piece, 0)) for peer in peers]))
            self.sends.append(sends)
            self.receives.append(receives)
            self.gathers.append(gathers)
            self.pieces.append(pieces)

    # A step

    def begin_step(self, total: float) -> None:
        """Start a step whose shards' weights sum to ``total``."""
        if self.fresh:
            self.arena._flats.clear()
            self._lay_out()
        self.total = total
        self.works: list[Any] = []
        self.staged: list[list[Any]] = [[] for _ in self.buckets]
        self.depth = 0
        self.stack: list[Part] = []
        self.launched = self.reduced = 0
        for number in range(len(self.buckets)):
            self._post(number)

    def _post(self, number: int) -> None:
        recv = self._recv
        self.staged[number] = [recv(t, peer, tag) for t, peer, tag in self.receives[number]]
        self.works += [recv(t, peer, tag) for t, peer, tag in self.gathers[number]]

    def begin_shard(self, shard: int, weight: float) -> None:
        """Start the backward pass of a shard."""
        self.shard, self.weight = shard, weight
        self.last = shard == self.shards[-1]
        self.target = self.slots[-1] if self.last else self.slots[len(self.stack)]
        self.left = [len(bucket.params) for bucket in self.buckets]
        self.seen = [False] * len(self.params)

    def on_grad(self, index: int, p: Parameter) -> None:
        """Take a gradient: the hook of parameter ``index``."""
        if self.delay and self.random.random() < 0.1:
            time.sleep(self.random.random() * self.delay)
        if self.fill == "hook":
            torch.mul(p.grad, self.weight, out=self.target[index])  # type: ignore[arg-type]
            p.grad = None
        self.seen[index] = True
        number = self.bucket_of[index]
        self.left[number] -= 1
        if self.left[number] == 0:
            if self.fill == "bucket":
                self._take(number)
            if self.last:
                while self.launched < len(self.buckets) and self.left[self.launched] == 0:
                    self._ready(self.launched)

    def _take(self, number: int) -> None:
        for index in self.buckets[number].params:
            p = self.params[index]
            if p.grad is not None:
                torch.mul(p.grad, self.weight, out=self.target[index])
                p.grad = None

    def end_shard(self) -> None:
        """Put the identity, -0.0, where the shard has no gradient; add up what is a whole subtree."""
        for number in range(len(self.buckets)):
            if self.left[number]:
                for index in self.buckets[number].params:
                    if not self.seen[index]:
                        self.target[index].fill_(-0.0)
                if self.fill == "bucket":
                    self._take(number)
            if not self.last:
                self._flag(number, self.levels[len(self.stack)])
            elif number >= self.launched:
                self._ready(number)
        if not self.last:
            self.stack, merges = adds([*self.stack, (self.shard, 1)])
            for a, b in merges:
                self.levels[a].add_(self.levels[b])

    def _flag(self, number: int, flat: Tensor) -> None:
        bucket = self.buckets[number]
        flags = flat[bucket.flags : bucket.flags + len(bucket.params)]
        if self.left[number]:
            flags.copy_(torch.tensor([float(self.seen[index]) for index in bucket.params]))
        else:
            flags.fill_(1.0)

    def _ready(self, number: int) -> None:
        """A bucket is complete."""
        began = time.perf_counter()
        self.launched = number + 1
        self._flag(number, self.main)
        bucket = self.buckets[number]
        span = slice(bucket.start, bucket.start + bucket.numel)
        merged = len(self.stack)
        stack = [*self.stack, (self.shard, 1)]
        while len(stack) > 1 and stack[-1][1] == stack[-2][1] and stack[-2][0] % (2 * stack[-2][1]) == 0:
            merged -= 1
            torch.add(self.levels[merged][span], self.main[span], out=self.main[span])
            stack[-2:] = [(stack[-2][0], 2 * stack[-2][1])]
        self._launch(number)
        self.seconds["launch"] += time.perf_counter() - began
        if self.lag >= 0:
            while self.reduced <= number - self.lag:
                self._reduce(self.reduced)
                self.reduced += 1
        elif self.lag == -2:
            self._jobs.put(number)

    def _launch(self, number: int) -> None:
        send = self._send
        self.works += [send(t, peer, tag) for t, peer, tag in self.sends[number]]

    def _reduce(self, number: int) -> None:
        """Wait for this rank's slice of a bucket from everyone, add, send the result to everyone."""
        if self.delay and self.random.random() < 0.3:
            time.sleep(self.random.random() * self.delay)
        seconds, clock, send = self.seconds, time.perf_counter, self._send
        works, foreign, total = self.staged[number], self.num_foreign, self.total
        t0 = clock()
        for piece, (sums, result, out) in enumerate(self.pieces[number]):
            for work in works[piece * foreign : (piece + 1) * foreign]:
                work.wait()
            t1 = clock()
            for a, b, into in sums:
                torch.add(a, b, out=into)
            result.div_(total)
            t2 = clock()
            self.works += [send(t, peer, tag) for t, peer, tag in out]
            t3 = clock()
            seconds["wait"] += t1 - t0
            seconds["add"] += t2 - t1
            seconds["send"] += t3 - t2
            t0 = t3

    def _serve(self) -> None:
        while True:
            self._reduce(self._jobs.get())
            self._finished.release()

    def finish(self) -> None:
        """After the last shard: finish all buckets, and give every parameter its gradient, a view into its bucket."""
        if self.lag == -2:
            for _ in self.buckets:
                self._finished.acquire()
        else:
            for number in range(self.reduced, len(self.buckets)):
                self._reduce(number)
        began = time.perf_counter()
        self._settle()
        for bucket in self.buckets:
            flags = self.main[bucket.flags : bucket.flags + len(bucket.params)].tolist()
            for index, flag in zip(bucket.params, flags, strict=True):
                self.params[index].grad = self.slots[-1][index] if flag > 0 else None
        self.seconds["end"] += time.perf_counter() - began

    def _settle(self) -> None:
        for work in self.works:
            work.wait()


class OwnCollectives(OwnBuckets):
    """The same with collectives of one group in one fixed order: all_to_all_single, then all_gather_single."""

    def _plan(self) -> None:
        mine = len(self.parts[self.rank])
        counts = [len(parts) for parts in self.parts]
        self.folding = fold([part for parts in self.parts for part in parts])
        total = sum(bucket.slice for bucket in self.buckets)
        staging = self.arena.take("received", sum(counts) * total)
        packed = self.arena.take("packed", mine * self.numel if mine > 1 else 1)
        self.inputs, self.outputs, self.results, self.operands = [], [], [], []
        self.input_splits, self.output_splits = [], []
        at = packed_at = 0
        for bucket in self.buckets:
            size = sum(counts) * bucket.slice
            output = staging[at : at + size]
            at += size
            if mine == 1:
                source = self.main[bucket.start : bucket.start + bucket.numel]
            else:
                source = packed[packed_at : packed_at + mine * bucket.numel]
                packed_at += mine * bucket.numel
            self.inputs.append(source)
            self.outputs.append(output)
            self.operands.append(list(output.view(-1, bucket.slice)))
            self.input_splits.append([mine * bucket.slice] * self.world)
            self.output_splits.append([count * bucket.slice for count in counts])

    def _post(self, number: int) -> None:
        pass

    def _launch(self, number: int) -> None:
        bucket, mine = self.buckets[number], len(self.parts[self.rank])
        span = slice(bucket.start, bucket.start + bucket.numel)
        if mine > 1:
            packed = self.inputs[number].view(self.world, mine, bucket.slice)
            for k in range(mine):
                packed[:, k].copy_(self._part(k)[span].view(self.world, bucket.slice))
        if self.world == 1:
            self.operands[number] = [self._part(k)[span] for k in range(mine)]
            return
        self.staged[number] = [
            dist.all_to_all_single(
                self.outputs[number],
                self.inputs[number],
                self.output_splits[number],
                self.input_splits[number],
                async_op=True,
            )
        ]

    def _reduce(self, number: int) -> None:
        if self.delay and self.random.random() < 0.3:
            time.sleep(self.random.random() * self.delay)
        t0 = time.perf_counter()
        for work in self.staged[number]:
            work.wait()
        t1 = time.perf_counter()
        bucket, memory = self.buckets[number], self.operands[number]
        for a, b in self.folding:
            memory[a].add_(memory[b])
        memory[0].div_(self.total)
        t2 = time.perf_counter()
        flat = self.main[bucket.start : bucket.start + bucket.numel]
        if self.world > 1:
            self.works.append(dist.all_gather_single(flat, memory[0], async_op=True))
        elif memory[0].data_ptr() != flat.data_ptr():
            flat.copy_(memory[0])
        self.seconds["wait"] += t1 - t0
        self.seconds["add"] += t2 - t1
        self.seconds["send"] += time.perf_counter() - t2


# A communication hook of DDP


class HookExchange:
    """DDP's buckets: its hook issues an all_to_all for each; all else follows, in bucket order, in the last bucket's hook."""

    def __init__(self, ddp: DistributedDataParallel, rank: int, world: int, arena: Arena) -> None:
        self.rank, self.world, self.arena = rank, world, arena
        self.pending: list[tuple[Any, Tensor, Tensor, int, Any]] = []
        self.weight = self.total = 1.0
        self.folding = fold([part for r in range(world) for part in parts_of(r, world, world)])
        ddp.register_comm_hook(None, lambda state, bucket: self.hook(bucket))

    def hook(self, bucket: Any) -> Any:
        """Start the exchange of a bucket."""
        buffer: Tensor = bucket.buffer()
        size = -(-buffer.numel() // (self.world * ALIGN)) * ALIGN
        flat = self.arena.take(f"flat{bucket.index()}", size * self.world)
        received = self.arena.take(f"received{bucket.index()}", size * self.world)
        torch.mul(buffer, self.weight, out=flat[: buffer.numel()])
        work = dist.all_to_all_single(received, flat, async_op=True)
        future: Any = torch.futures.Future()
        self.pending.append((work, flat, received, buffer.numel(), future))
        if bucket.is_last():
            self.complete()
        return future

    def complete(self) -> None:
        """Do the rest for all buckets, in order."""
        gathers = []
        for work, flat, received, _, _ in self.pending:
            work.wait()
            memory = received.view(self.world, -1)
            for a, b in self.folding:
                memory[a].add_(memory[b])
            memory[0].div_(self.total)
            gathers.append(dist.all_gather_single(flat, memory[0], async_op=True))
        for gather, (_, flat, _, numel, future) in zip(gathers, self.pending, strict=True):
            gather.wait()
            future.set_result(flat[:numel])
        self.pending = []
