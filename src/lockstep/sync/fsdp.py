"""PyTorch's ``fully_shard``, to the bit: each rank holds a part of the parameters, gradients and optimizer state.

A unit's parameters are all-gathered for its forward and backward pass by PyTorch. Its gradients are not reduce-scattered, which
would add them in an order of its own: each rank sends every owner its slices of each shard's leaf, and the owner adds them in
the tree of ``exact``. All ranks must run the model equally often: each has the same number of shards, and none may be empty.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lockstep.base.config import RunConfig
from lockstep.base.errors import ConfigError, DataError, LossError, ModelError
from lockstep.plan.blocks import block
from lockstep.plan.shards import MicroStep, StepPlan, num_filled
from lockstep.plan.tree import Node, push, roots
from lockstep.sync.buffers import ShardBuffers, add_changes
from lockstep.sync.exchange import Exchange
from lockstep.sync.gradients import came_in_parts, has_gradient, on_gradient, refuse_create_graph, take_gradient
from lockstep.sync.norms import WholeNorms
from lockstep.sync.ordered import OrderedExchange
from lockstep.sync.protocol import Outcome, Sync
from lockstep.sync.slice_sum import SliceSum
from lockstep.sync.slices import Slices
from lockstep.sync.start import take_from_rank_0
from lockstep.sync.timed_comms import TimedAllGather, Waited
from lockstep.sync.units import SAME_BLOCKS, Unit, find_units, fingerprint
from lockstep.world.comm.dtensors import is_dtensor
from lockstep.world.comm.group import Transport, default_group

_USED, _ORDER = "used", "order"


class _History:
    """What the newest phase of one number has had, which is not sent again while it stays the same."""

    def __init__(self) -> None:
        self.own: dict[int, frozenset[int]] = {}
        """By backward call, the numbers of parameters for which this rank's shards had gradients."""
        self.used: dict[int, frozenset[int]] = {}
        """The same of all ranks."""
        self.order = 0
        """The fingerprint of the units that each shard has run: the same on every rank."""


class FSDPSync(Sync):
    """The strategy ``fsdp``.

    Args:
        rank: this process's rank.
        world_size: number of processes.
        num_shards: V of the run.
        devices: those of this process; the first is used.
        ranks_per_host: number of consecutive ranks on each host; 1 if they have different numbers.
        between_hosts: whether any messages go over a network.

    Raises:
        ConfigError: some ranks would have more shards than others.
    """

    forward_is_collective = True
    is_plain = False
    waited_s = waited_in_forward_s = 0.0

    def __init__(
        self,
        rank: int,
        world_size: int,
        num_shards: int,
        devices: Sequence[torch.device],
        *,
        ranks_per_host: int = 1,
        between_hosts: bool = False,
    ) -> None:
        if num_shards % world_size:
            raise ConfigError(
                f"strategy='fsdp' with {num_shards} shards on {world_size} processes: every process must have equally "
                "many, since the parameters are spread over all of them and they must run the model equally often. Use a "
                f"number of processes that divides {num_shards}, or another strategy."
            )
        self.replaced: dict[Parameter, Parameter] = {}
        self.buffers = ShardBuffers()
        self._num_shards = num_shards
        self._rank, self._world_size = rank, world_size
        self._blocks = [block(number, world_size, num_shards) for number in range(world_size)]
        self._block = self._blocks[rank]
        self._device = devices[0]
        self.times_forward = self._device.type == "cpu"
        self._waited = Waited()
        self._mesh: DeviceMesh | None = None
        self._exchange: Exchange | OrderedExchange
        if self._device.type == "cpu":
            self._exchange, self._stream = Exchange(rank, ranks_per_host=ranks_per_host, between_hosts=between_hosts), None
        else:
            self._exchange, self._stream = OrderedExchange(self._device), torch.Stream(self._device)
        self._sending: tuple[Tensor, torch.Event] | None = None
        """The newest leaf that the stream sends, and the event after which its memory is free."""
        self._num_phases = 0
        self._units: list[Unit] = []
        self._parameters: list[Parameter] = []
        """The sharded ones, of all models."""
        self._numbers: dict[Parameter, int] = {}
        """Their numbers in that list."""
        self._names: dict[Parameter, str] = {}
        """Of whole parameters, on which autograd works."""
        self._places: dict[Parameter, tuple[Unit, Slices, int]] = {}
        """Each whole parameter's unit, and where the slices of its gradient go: the slot."""
        self._hooks: list[RemovableHandle] = []
        self._hook_lock = threading.Lock()
        self._histories: dict[int, _History] = {}
        """By number of the phase."""
        self._changing: set[int] = set()
        """Numbers of the modules whose buffers any shard has changed; the same on every rank."""
        self._micro: MicroStep | None = None
        self._listening = False
        self._call, self._factor, self._keeps_graph = 0, 1.0, False
        self._norms = WholeNorms()
        self._forget_phase()

    def _forget_phase(self) -> None:
        self._sums: dict[tuple[int, Slices], SliceSum] = {}
        """By backward call."""
        self._used: dict[int, set[int]] = {}
        """By backward call, the numbers of parameters for which this rank's shards had gradients."""
        self._changes: list[Node[dict[int, Tensor]]] = []
        self._runs: list[tuple[int, ...]] = []
        """For each backward call, the numbers of the units that had run in the micro-step, in order, and then of those that it
        has entered."""
        self._ran: list[int] = []
        """The same of the running micro-step."""
        self._forget_backward()

    def _forget_backward(self) -> None:
        self._leaves: dict[Slices, Tensor] = {}
        """What the backward pass has computed so far, by owner."""
        self._filled: dict[Slices, set[int]] = {}
        """The slots of these leaves that have a gradient."""
        self._entered: list[int] = []
        """The numbers of the units that the backward pass has come to, in order."""
        self._inside: set[Unit] = set()
        """Those that it is not yet through with."""
        self._passed: dict[Unit, int] = {}
        """How many forward passes of each unit the backward pass is through with."""
        self._sent: set[Unit] = set()

    # Methods of Sync

    @override
    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """The parameters of ``model`` are replaced by DTensors: see ``replaced``."""
        _check(model)
        take_from_rank_0(model)
        before = dict(model.named_parameters())
        self.shard(model)
        self.replaced.update({old: model.get_parameter(name) for name, old in before.items()})
        names = {parameter: name for name, parameter in model.named_parameters()}
        for parameter in names:
            self._numbers[parameter] = len(self._parameters)
            self._parameters.append(parameter)
        for part in model.modules():
            if isinstance(part, FSDPModule):
                self._add_unit(part, names)
        self.buffers.attach(model)
        return model

    @override
    def shard(self, model: nn.Module) -> None:
        if self._mesh is None:
            self._mesh = DeviceMesh.from_group(default_group(), self._device.type)
        for part in (*find_units(model), model) if any(True for _ in model.parameters()) else ():
            if not isinstance(part, FSDPModule):
                fully_shard(part, mesh=self._mesh)
        model.to(self._device)  # its buffers
        model.register_forward_hook(self._reshard)

    def _add_unit(self, module: FSDPModule, names: dict[Parameter, str]) -> None:
        if self.times_forward:
            module.set_custom_all_gather(TimedAllGather(self._waited))  # type: ignore[arg-type]  # whose base is private
        unit = Unit(module, len(self._units), self._world_size, self._has_begun, self._enters, self._is_through)
        self._units.append(unit)
        places = {
            parameter: (unit, slices, slot) for slices in unit.slices for slot, parameter in enumerate(slices.parameters)
        }
        for whole, parameter in unit.gathered.items():
            self._names[whole] = names[parameter]
            if has_gradient(whole):
                self._places[whole] = places[parameter]
                self._hooks.append(on_gradient(whole, self._arrived))

    @override
    def begin_phase(self, plan: StepPlan, phase: int) -> None:
        """Raises:
        DataError: a global batch has too few samples for all shards.
        """
        if min(plan.sizes) < self._num_shards:
            raise DataError(
                f"step {plan.number}: a global batch of {min(plan.sizes)} samples leaves some of the {self._num_shards} "
                "shards empty, and with strategy='fsdp' every process must run the model equally often. Use DataLoader(..., "
                "drop_last=True), a larger batch_size, or another strategy."
            )
        self.buffers.begin_step(num_filled(plan.sizes, self._num_shards))
        self._history = self._histories.setdefault(phase, _History())
        self._step, self._num_phases = plan.number, self._num_phases + 1
        subtrees = list(map(roots, self._blocks))
        if isinstance(self._exchange, Exchange):
            self._exchange.begin_phase(self._num_phases, subtrees)
        else:
            self._exchange.begin_phase(subtrees)

    @override
    def begin_shard(self, micro: MicroStep) -> None:
        self._micro = micro
        self._ran = []
        for unit in self._units:
            unit.begin_shard()
        self._waited.take()  # an evaluation may have come before

    @override
    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        self.waited_in_forward_s = self._waited.take()
        refuse_create_graph(options, "fsdp")
        if is_dtensor(loss):
            raise LossError(
                "the loss is a DTensor, since a part of it was computed from the parameters themselves, which strategy='fsdp' "
                "has sharded (a penalty on the weights?): compute that in the model's forward pass, or use weight_decay"
            )
        self._forget_backward()
        self._call, self._factor, self._keeps_graph = call, float(factor), bool(options.get("retain_graph"))
        self._runs.append(tuple(self._ran))
        self._used.setdefault(call, set())
        self._listening = True
        try:
            with self.buffers.held():
                loss.backward(**options)  # type: ignore[no-untyped-call]
        finally:
            self._listening = False
        self._runs.append(tuple(self._entered))
        for unit in reversed(self._units):
            if unit not in self._sent and (unit.has_run or any(slices in self._leaves for slices in unit.slices)):
                self._send(unit)
        if not self._keeps_graph:
            for unit, number in self._passed.items():
                unit.num_awaited = max(0, unit.num_awaited - number)
        self._forget_backward()
        self.waited_s = self._waited.take()

    @torch.no_grad()
    @override
    def end_shard(self) -> None:
        micro, self._micro = self._micro, None
        assert micro is not None
        changes = self.buffers.end_shard(micro)
        if changes is not None:
            push(self._changes, Node(micro.shard, 1, changes), add_changes)

    @override
    def unforeseen(self) -> Sequence[Hashable]:
        """Whether other parameters than before had gradients, each rank's order of units where it is new, the modules whose
        buffers have changed for the first time, and looks at buffers."""
        more: list[Hashable] = []
        if {call: frozenset(used) for call, used in self._used.items()} != self._history.own:
            more.append((_USED,))
        order = fingerprint(self._runs)
        if order != self._history.order:
            more.append((_ORDER, self._rank, order))
        owners = {owner for node in self._changes for owner in node.value}
        return [*more, *sorted(owners - self._changing), *self.buffers.looks()]

    @override
    def gather(self, row: list[float], num_calls: int) -> list[list[float]] | None:
        return None

    @torch.no_grad()
    @override
    def end_phase(self, outcome: Outcome) -> None:
        keys = [key for key in outcome.unforeseen if isinstance(key, tuple)]
        self._check_order([key[2] for key in keys if key[0] == _ORDER])
        if any(key[0] == _USED for key in keys):
            self._exchange_used(len(outcome.totals))
        self._changing.update(number for number in outcome.unforeseen if isinstance(number, int))
        changes = self.buffers.start_sums(self._changing, self._changes, self._exchange.start)
        self._exchange.finish()
        self.buffers.apply(changes)
        self.buffers.judge(outcome.unforeseen)
        if self._stream is not None:
            torch.accelerator.current_stream(self._device).wait_stream(self._stream)
        for (call, slices), bucket_sum in sorted(self._sums.items(), key=lambda item: item[0][0]):
            total = outcome.totals[call] if call < len(outcome.totals) else None
            self._set_gradients(call, slices, bucket_sum.total() if total is None else bucket_sum.total().div_(total))
        for unit in self._units:  # also those whose forward pass no backward pass has followed
            unit.module.reshard()
        self._forget_phase()

    @override
    def drop(self) -> None:
        self.buffers.rewind()
        self._forget_phase()
        self._micro = None

    @override
    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._mesh = [], None
        self._norms.close()

    def _reshard(self, model: nn.Module, *_: object) -> None:
        """Reshard after a forward pass that no backward pass follows, which alone would do so otherwise."""
        is_trained = id(model) in {id(unit.module) for unit in self._units}
        if isinstance(model, FSDPModule) and (self._micro is None or not is_trained or not torch.is_grad_enabled()):
            model.reshard()

    # The backward pass

    def _has_begun(self, unit: Unit) -> bool:
        """A forward pass of a unit begins. Returns whether it counts: not if it is an evaluation's, or a checkpoint's."""
        if self._micro is None or self._listening:
            return False
        self._ran.append(unit.number)
        return True

    def _arrived(self, whole: Parameter) -> None:
        """Move a new gradient into its leaf. Called by autograd during the backward pass."""
        if not self._listening:
            return
        with self._hook_lock, torch.no_grad():
            unit, slices, slot = self._places[whole]
            gradient = take_gradient(whole, self._names[whole])
            if unit in self._sent:
                raise came_in_parts(self._names[whole])
            if self._factor == 0:  # a shard of weight 0 is left out: its gradient may be NaN, from a mean over nothing
                return
            if slices not in self._leaves:
                self._leaves[slices], self._filled[slices] = slices.new_leaf(), set()
            filled = self._filled[slices]
            slices.put(self._leaves[slices], slot, gradient, self._factor, adds=slot in filled)
            filled.add(slot)
            self._used[self._call].add(self._numbers[slices.parameters[slot]])

    def _enters(self, unit: Unit) -> None:
        """The backward pass has the gradient of an output of a unit, whose parameters PyTorch gathers if it is the first."""
        if self._listening and unit not in self._inside:
            self._inside.add(unit)
            self._entered.append(unit.number)

    def _is_through(self, unit: Unit) -> None:
        """The backward pass is through with one forward pass of a unit: after the last, send its gradients.

        Every rank comes here at the same place among PyTorch's collectives, whichever parameters had a gradient."""
        if not self._listening:
            return
        self._inside.discard(unit)
        self._passed[unit] = self._passed.get(unit, 0) + 1
        if self._passed[unit] == unit.num_awaited and not unit.is_unannounced and unit not in self._sent:
            self._send(unit)

    @torch.no_grad()
    def _send(self, unit: Unit) -> None:
        """Send the gradients of a unit to their owners, and add those that come."""
        micro = self._micro
        assert micro is not None
        self._sent.add(unit)
        for slices in unit.slices:
            leaf = self._leaves.pop(slices, None)
            if leaf is None:
                if not any(parameter.requires_grad for parameter in slices.parameters):
                    continue
                leaf = slices.new_leaf()
            with self._on_stream():
                key = (self._call, slices)
                bucket_sum = self._sums.get(key)
                if bucket_sum is None:
                    bucket_sum = self._sums[key] = SliceSum(slices, self._blocks)
                bucket_sum.add(micro.shard - self._block.start, self._swap(leaf))
                if micro.is_last:
                    bucket_sum.total()  # now, to free the memory of the leaves
                if self._stream is not None:
                    self._sending = (leaf, self._stream.record_event())

    def _swap(self, leaf: Tensor) -> Tensor:
        """Send each rank its row of a leaf. Row r of the result is what rank r has sent."""
        if self._world_size == 1:
            return leaf
        received = torch.empty_like(leaf)
        self._waited.call(dist.all_to_all_single, received.view(-1), leaf.view(-1), group=default_group())
        return received

    def _on_stream(self) -> contextlib.AbstractContextManager[object]:
        if self._stream is None:
            return contextlib.nullcontext()
        current = torch.accelerator.current_stream(self._device)
        self._stream.wait_stream(current)
        if self._sending is not None:  # it may be freed only when it has been read
            current.wait_event(self._sending[1])
            self._sending = None
        return self._stream

    # The end of a phase

    def _check_order(self, orders: Sequence[int]) -> None:
        """Raises:
        ModelError: the ranks have run different units.
        """
        if not orders:
            return
        if len(orders) < self._world_size or len(set(orders)) > 1:
            raise ModelError(
                f"step {self._step}: the processes have run different parts of the model, forward or backward (layers left out "
                f"at random, or chosen by the data?). {SAME_BLOCKS}"
            )
        self._history.order = orders[0]

    def _exchange_used(self, num_calls: int) -> None:
        """Find out for which parameters any shard had a gradient."""
        history = self._history
        history.own = {call: frozenset(used) for call, used in self._used.items()}
        flags = torch.zeros(num_calls, len(self._parameters), dtype=torch.uint8)
        for call, used in history.own.items():
            flags[call, list(used)] = 1
        flags = flags.to(self._device)
        if self._world_size > 1:
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=default_group())
        history.used = {
            call: frozenset(itertools.compress(itertools.count(), row)) for call, row in enumerate(flags.tolist())
        }

    def _set_gradients(self, call: int, slices: Slices, row: Tensor) -> None:
        """Set this rank's parts of gradients to their sums, where any shard had one."""
        used = self._history.used.get(call, frozenset())
        slots = [slot for slot, parameter in enumerate(slices.parameters) if self._numbers[parameter] in used]
        for slot, own in zip(slots, slices.own(row, slots), strict=True):
            parameter: Any = slices.parameters[slot]
            gradient = DTensor.from_local(
                own.to(parameter.dtype),
                self._mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def _check(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise ModelError(
                f"parameter {name!r} is a scalar, which cannot be sharded over processes (strategy='fsdp'): give it the "
                "shape (1,), or use another strategy"
            )


def make(config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]) -> Sync:
    """See ``config.Strategy``."""
    if config.precision == "16-master":
        raise ConfigError(
            "precision='16-master' with strategy='fsdp': the float16 copies would be made of each process's part of the "
            "weights. Use 16-mixed or bf16-mixed, which have float32 weights too."
        )
    return FSDPSync(
        dist.get_rank(),
        dist.get_world_size(),
        num_shards,
        devices,
        ranks_per_host=transport.ranks_per_host,
        between_hosts=transport.interface != "lo",
    )
