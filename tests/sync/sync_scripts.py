"""The protocol of a Sync, walked through by hand, without a team's loop."""

import collections
import contextlib
import gc
import random
from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import lockstep
from lockstep._events.measure.step_clock import StepClock
from lockstep._loop.exchange import Peers, exchange
from lockstep._loop.numbers import PhaseNumbers
from lockstep._plan.blocks import block, even_blocks
from lockstep._plan.shards import plan_step
from lockstep._plan.tree import Node, push, roots
from lockstep._sync import exact
from lockstep._sync.buffers import ShardBuffers
from lockstep._sync.ddp import DDPStrategy
from lockstep._sync.dp import DataParallelStrategy
from lockstep._sync.exact import ExactStrategy
from lockstep._sync.exchange import Exchange
from lockstep._sync.horovod import HorovodStrategy
from lockstep._sync.ordered import OrderedExchange
from lockstep._sync.reduce_late import reduce_late
from lockstep._sync.single import SingleStrategy
from lockstep._sync.used_parameters import UsedParameters
from lockstep._world.comm.short import all_gather_short


class Model(nn.Module):
    """Its gradient for the loss below is known; its buffers tell what was seen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.narrow = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.never = nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.tensor(2**53, dtype=torch.int64))
        self.register_buffer("constant", torch.full((2,), 0.1))

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.5).add_(0.5 * x.mean(0))
            self.count += 1
        return x @ self.weight + self.narrow.float()


def samples(step, number):
    return torch.randn(number, 2, generator=torch.Generator().manual_seed(step))


def make(kind, team, **options):
    if kind.endswith(", in buckets"):  # as if gradients were too large for one message
        exact.MAX_SINGLE_MESSAGE_BYTES = 0
        kind = kind.removesuffix(", in buckets")
    if kind == "single":
        return SingleStrategy(team.num_shards)
    if kind == "horovod":
        return HorovodStrategy(team.num_shards, timeout_s=60)
    if kind == "dp":
        return DataParallelStrategy(team.num_shards, 1, team.devices)
    if kind == "exact":
        return ExactStrategy(team.rank, team.world_size, team.num_shards)
    if kind == "exact, by collectives":
        return ExactStrategy(team.rank, team.world_size, team.num_shards, gpus=[torch.device("cpu")])
    if kind == "exact, between hosts":
        return ExactStrategy(team.rank, team.world_size, team.num_shards, between_machines=True)
    return DDPStrategy(team.num_shards, **{"find_unused": False, **options})


PLAIN = (((1.0, None, "mean"),),)
"""One phase with one backward call."""


def walk(kind, sizes, phases=PLAIN, drops=()):
    """The gradients and buffers after each phase of each step whose global batch has so many
    samples.

    Args:
        kind: of sync.
        sizes: of the global batches.
        phases: for each phase of a step its backward calls: what the loss is multiplied by, the
            weights by shard (None: by samples), and the reduction.
        drops: steps that are dropped after their first shard.
    """
    with lockstep.join() as team:
        sync, model = make(kind, team), Model()
        peers = Peers(team, 1, StepClock(SimpleNamespace(pause_s=0.0), torch.device("cpu")))
        forward = sync.attach(model)
        seen = []
        for step, size in enumerate(sizes, 1):
            plan = plan_step(step, (size,), team.rank, even_blocks(team.world_size, team.num_shards))
            for phase, calls in enumerate(phases):
                numbers = PhaseNumbers()
                sums = sync.open(plan, phase)
                for micro in plan.micro_batches:
                    sums.begin_shard(micro)
                    first = sum(len(range(s, size, team.num_shards)) for s in range(micro.shard))
                    x = samples(step, size)[first : first + micro.num_samples]
                    for number, (scale, weights, reduction) in enumerate(calls):
                        factor = numbers.call(None if weights is None else weights[micro.shard], reduction, micro)
                        sums.backward(scale * forward(x).sum(1).mean(), number, factor, {})
                        if not micro.is_last:
                            assert model.weight.grad is None
                    numbers.end_shard(micro)
                    sums.end_shard()
                    if step in drops:
                        sums.abandon()
                        break
                else:
                    agreed = exchange(numbers, sums, plan, (step, phase), peers)
                    sums.finish(agreed.divisors, agreed.news)
                state = {name: tensor.clone() for name, tensor in model.named_buffers()}
                grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
                seen.append((step, grads, state))
                for parameter in model.parameters():
                    parameter.grad = None
        sync.close()
        del forward
        return seen


def join_with(strategy):
    """Nothing but a run with this strategy."""
    lockstep.join(strategy=strategy).close()


def start_unlike():
    """Models that differ between ranks are made equal."""
    with lockstep.join() as team:
        torch.manual_seed(team.rank)
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model[1].running_mean.fill_(team.rank)
        sync = make("ddp", team)
        sync.attach(model)
        sync.close()
        return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def sum_in_rounds(ranks_per_machine, lengths, num_shards):
    """The sums of leaves over all shards as several exchanges at a time take them, the rounds of
    each rank, and the number of elements sent to each other rank."""
    sent = collections.Counter()
    send = torch.distributed.isend

    def counting(tensor, peer, **options):
        sent[peer] += tensor.numel()
        return send(tensor, peer, **options)

    with lockstep.join() as team:
        blocks = [block(rank, team.world_size, num_shards) for rank in range(team.world_size)]
        exchange = Exchange(team.rank, ranks_per_machine=ranks_per_machine)
        exchange.begin_phase(1, [roots(own) for own in blocks])
        sums = []
        for length in lengths:
            stack = []
            for shard in blocks[team.rank]:
                push(stack, Node(shard, 1, leaf(length, shard)), torch.add)
            sums.append([node.value for node in stack])
        torch.distributed.isend = counting
        try:
            for nodes in sums:
                exchange.start(nodes)
            exchange.finish()
        finally:
            torch.distributed.isend = send
        return [nodes[0] for nodes in sums], [one.members for one in exchange.rounds], sent


class Launches(TorchDispatchMode):
    """Counts the kernels and collectives of a block. Views are none, and messages are not
    counted."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        none = getattr(func, "is_view", False) or any(
            part in name for part in ("empty", "detach", "c10d::send", "c10d::recv")
        )
        self.number += not none
        return func(*args, **(kwargs or {}))


def sum_in_order(ranks_per_machine, lengths, num_shards):
    """The sums of leaves over all shards as they are taken in one order on devices, the launches of
    each, and the number of elements that each sends to each other rank in messages."""
    sent = []
    send_batch = torch.distributed.batch_isend_irecv

    def counting(messages):
        for one in messages:
            sent[-1][one.peer] += one.tensor.numel() * (one.op is torch.distributed.isend)
        return send_batch(messages)

    with lockstep.join() as team:
        blocks = [block(rank, team.world_size, num_shards) for rank in range(team.world_size)]
        exchange = OrderedExchange(team.rank, team.device, ranks_per_machine=ranks_per_machine)
        exchange.begin_phase([roots(own) for own in blocks])
        sums, launches = [], []
        for length in lengths:
            stack = []
            for shard in blocks[team.rank]:
                push(stack, Node(shard, 1, leaf(length, shard).to(team.device)), torch.add)
            sums.append([node.value for node in stack])
            torch.distributed.batch_isend_irecv = counting
            sent.append(collections.Counter())
            try:
                with Launches() as counted:
                    exchange.start(sums[-1])
            finally:
                torch.distributed.batch_isend_irecv = send_batch
            launches.append(counted.number)
        exchange.finish()
        return [nodes[0].cpu() for nodes in sums], launches, sent


NUM_USED = 5
"""The parameters of ``use_parameters``."""


def use_parameters(steps):
    """For each phase of each step the parameters that are known as used in each backward call, and
    in one more, and whether the ranks have exchanged them. ``steps``: those that each rank uses in
    each backward call."""
    with lockstep.join() as team:
        used, seen = UsedParameters(team.device), []
        for step in steps:
            seen.append([])
            for phase, by_rank in enumerate(step):
                used.begin_phase(phase)
                for call, numbers in enumerate(by_rank[team.rank]):
                    used.begin_call(call)
                    for number in numbers:
                        used.add(call, number)
                num_calls = len(by_rank[team.rank])
                is_new = bool(all_gather_short(torch.tensor([float(used.is_new)])).any())
                if is_new:
                    used.exchange(num_calls, NUM_USED)
                seen[-1].append(([sorted(used.of(call)) for call in range(num_calls + 1)], is_new))
        return seen


def parameters_of_kinds():
    """Parameters of two dtypes and several shapes, one of them in another memory order."""
    shapes = {"matrix": (2, 3), "vector": (6,), "turned": (3, 2), "double": (6,), "narrow": (6,)}
    dtypes = {"double": torch.float64, "narrow": torch.bfloat16}
    found = {name: torch.ones(shape, dtype=dtypes.get(name)) for name, shape in shapes.items()}
    found["turned"] = torch.ones(2, 3).t()
    return {name: nn.Parameter(tensor) for name, tensor in found.items()}


def gradient_of_kind(name, parameter, rank):
    numbers = 100.0 * rank + 10.0 * sorted(parameters_of_kinds()).index(name) + torch.arange(6.0)
    return numbers.to(torch.float64 if name == "double" else torch.float32).view(parameter.shape)


def reduce_what_some_use(cases):
    """What the ranks' gradients are after they were reduced together, in order, and whether all
    were used. ``cases``: for each rank the names of the parameters that it has gradients of, in
    their order."""
    with lockstep.join() as team:
        parameters, found = parameters_of_kinds(), []
        names = {parameter: name for name, parameter in parameters.items()}
        for by_rank in cases:
            sums = {parameters[name]: gradient_of_kind(name, parameters[name], team.rank) for name in by_rank[team.rank]}
            all_used = reduce_late(list(parameters.values()), sums, team.world_size)
            found.append(({names[parameter]: total for parameter, total in sums.items()}, all_used))
        return found


def gather_short():
    """What comes of a row of each rank, and how many messages this rank sends for it."""
    sent = []
    send = torch.distributed.isend
    torch.distributed.isend = lambda *args, **options: sent.append(args[1]) or send(*args, **options)
    try:
        with lockstep.join() as team:
            return all_gather_short(torch.tensor([team.rank, 0.5])), len(sent)
    finally:
        torch.distributed.isend = send


def leaf(length, shard):
    """Numbers whose sum depends on the order in which it is taken."""
    return torch.randn(length, generator=torch.Generator().manual_seed(1000 * length + shard)) * 10.0**shard


class _Losing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3))
        self.register_buffer("bank", torch.randn(24, 3))
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x, index):
        found = self.body(x)
        with torch.no_grad():
            self.bank[index] = found
            self.seen += len(x)
            self.calls += 1
            self.mean.lerp_(found.mean(0), 0.1)
        return found


def buffers_that_lose(strategy):
    """Two steps of a model with buffers of all kinds."""
    with lockstep.join(strategy=strategy, checkpoint_every="off") as team:
        model = _Losing()
        data = torch.utils.data.TensorDataset(torch.randn(24, 6), torch.arange(24))
        model, loader = team.prepare(model, torch.utils.data.DataLoader(data, 12))
        for batch in loader:
            for inputs, index in batch.shards:
                team.backward(model(inputs, index).square().mean())


class Failing(torch.autograd.Function):
    """Passes its input on; the backward pass fails where ``fails`` is set."""

    fails = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Failing.fails:
            raise ZeroDivisionError("in the middle")
        return gradient


class Halves(nn.Module):
    """The backward pass may fail between its halves, of which each fills a bucket. (The first
    layers are run by a checkpoint, and so once more in the backward pass, where BatchNorm must not
    count.)"""

    def __init__(self, width=1100):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.last(Failing.apply(checkpoint(self.first, self.norm(x), use_reentrant=False)))


def catch(at_shard, then, strategy):
    """What a script got that catches an error in the backward pass of a shard in step 2, and then
    does something else: the error's code, its message, and the class of what it was raised from;
    or the number of steps."""
    with lockstep.join(strategy=strategy, checkpoint_every="off") as team:
        model = Halves()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = [torch.randn(2 * team.num_shards, 1100) for _ in range(3)]
        model, optimizer, loader = team.prepare(model, optimizer, data)
        first = team.rank * team.num_shards // team.world_size
        try:
            for batch in loader:
                for shard, x in enumerate(batch.shards, first):
                    Failing.fails = team.step == 2 and shard == at_shard
                    loss = model(x).mean()
                    try:
                        team.backward(loss)
                    except ZeroDivisionError:
                        Failing.fails = False
                        if then == "again":
                            team.backward(model(x).mean())
                        elif then == "plainly":
                            model(x).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        except lockstep.UsageError as error:
            if team.world_size > 1:
                raise
            return error.code, str(error), type(error.__cause__).__name__
        return team.step


def leave_units_gathered():
    """Which parameters of a model are sharded behind a pass that an error left in a shard, between
    forward and backward."""
    with lockstep.join(strategy="fsdp", checkpoint_every="off") as team:
        model, loader = team.prepare(Halves(8), [torch.randn(2 * team.num_shards, 8)])
        with contextlib.suppress(ZeroDivisionError):
            for batch in loader:
                for x in batch.shards:
                    model(x).mean()
                    raise ZeroDivisionError
        return {name: isinstance(parameter, DTensor) for name, parameter in model.named_parameters()}


def held_through_an_error():
    """A buffer's value after a backward pass that wrote to it was ended by an error."""
    model = nn.BatchNorm1d(2)
    buffers = ShardBuffers()
    buffers.attach(model)
    with contextlib.suppress(ZeroDivisionError), buffers.restored_after():
        model(torch.ones(4, 2))
        raise ZeroDivisionError
    return model.running_mean.tolist(), model.num_batches_tracked.item()


def bytes_alive():
    """The bytes of all tensors on the CPU."""
    gc.collect()
    storages = [item.untyped_storage() for item in gc.get_objects() if type(item) in (torch.Tensor, nn.Parameter)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def freeze_at_random(num_steps, look_at):
    """The bytes of all tensors alive in these steps of a training that learns three of nine layers
    in each, at random."""
    before, exact.MAX_SINGLE_MESSAGE_BYTES = exact.MAX_SINGLE_MESSAGE_BYTES, 0
    found = []
    with lockstep.join(checkpoint_every="off", log_every=10**6) as team:
        layers = nn.ModuleList(nn.Linear(40, 40 + 2 ** min(number, 3)) for number in range(9))
        dice = random.Random(0)
        optimizer = torch.optim.SGD(layers.parameters(), 0.1)
        _, optimizer, loader = team.prepare(layers, optimizer, [torch.randn(6, 40) for _ in range(num_steps)])
        for batch in loader:
            chosen = dice.sample(range(9), 3)
            for number, layer in enumerate(layers):
                layer.requires_grad_(number in chosen)
            for x in batch.shards:
                for layer in layers:
                    x = layer(x[:, :40])
                team.backward(x.square().mean())
            optimizer.step()
            optimizer.zero_grad()
            if team.step in look_at:
                found.append(bytes_alive())
    exact.MAX_SINGLE_MESSAGE_BYTES = before
    return found
