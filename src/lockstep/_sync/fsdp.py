"""PyTorch's ``fully_shard`` with bit-identical sums: each rank keeps a slice of the parameters,
gradients and optimizer state.

A unit's parameters are all-gathered for its forward and backward pass by PyTorch. Its gradients are
not reduce-scattered, which would add them in another order: each rank sends every owner its
slices of each shard's leaf, and the owner adds them in the tree of ``exact``. All ranks must run
the model equally often: each has the same number of shards, and none may be empty."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError, DataError, LossError, ModelError
from lockstep._plan.blocks import block
from lockstep._plan.shards import MicroBatch, StepPlan, num_filled
from lockstep._plan.tree import Node, push, roots
from lockstep._sync.buffers import ShardBuffers, add_changes
from lockstep._sync.exchange import Exchange
from lockstep._sync.gradients import (
    came_in_pieces,
    has_gradient,
    is_left_out,
    on_gradient,
    refuse_create_graph,
    unusable,
    usable,
)
from lockstep._sync.news import News
from lockstep._sync.norms import WholeNorms
from lockstep._sync.ordered import OrderedExchange
from lockstep._sync.protocol import PhaseSums, Strategy
from lockstep._sync.slice_exchange import SliceExchange
from lockstep._sync.slices import Slices
from lockstep._sync.start import broadcast_from_rank_0
from lockstep._sync.timed_comms import TimedAllGather, Waited
from lockstep._sync.unit_runs import UnitRuns
from lockstep._sync.units import Unit, find_units
from lockstep._sync.used_parameters import UsedParameters
from lockstep._world.comm.dtensors import cut_like, is_dtensor
from lockstep._world.comm.group import Transport, default_group
from lockstep._world.devices import move


class FSDPStrategy(Strategy):
    """The strategy ``fsdp``.

    Args:
        rank: this process's rank.
        world_size: number of processes.
        num_shards: V of the run.
        devices: the devices of this process; the first is used.
        ranks_per_machine: number of consecutive ranks on each machine; 1 if machines differ in it.
        between_machines: whether any messages go over a network.

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
        ranks_per_machine: int = 1,
        between_machines: bool = False,
    ) -> None:
        if num_shards % world_size:
            raise ConfigError(
                f"strategy='fsdp' with {num_shards} shards on {world_size} processes: all processes must have the same number "
                "of shards, because each forward pass gathers parameters from all of them. Use a number of processes that "
                f"divides {num_shards}, or another strategy.",
                code="fsdp-uneven-shards",
            )
        self.replaced: dict[Parameter, Parameter] = {}
        self.buffers = ShardBuffers()
        self._num_shards = num_shards
        self.rank, self.world_size = rank, world_size
        self._blocks = [block(number, world_size, num_shards) for number in range(world_size)]
        self._subtrees = list(map(roots, self._blocks))  # once: an exchange plans its rounds by it
        self._device = devices[0]
        self.times_forward = self._device.type == "cpu"
        self.waited = Waited()
        self._mesh: DeviceMesh | None = None
        self.gradients = SliceExchange(rank, self._blocks, self._device, self.waited)
        self.exchange: Exchange | OrderedExchange
        """The exchange of buffers."""
        if self._device.type == "cpu":
            self.exchange = Exchange(rank, ranks_per_machine=ranks_per_machine, between_machines=between_machines)
        else:
            self.exchange = OrderedExchange(rank, self._device, ranks_per_machine=ranks_per_machine)
        self._num_phases = 0
        self.units: list[Unit] = []
        self.parameters: list[Parameter] = []
        """The sharded parameters of all models."""
        self.numbers: dict[Parameter, int] = {}
        """The number of each sharded parameter in that list."""
        self.names: dict[Parameter, str] = {}
        """The names of sharded parameters, and of whole ones, on which autograd works."""
        self.places: dict[Parameter, tuple[Unit, Slices, int]] = {}
        """Each whole parameter's unit, and where the slices of its gradient go: the slot."""
        self._hooks: list[RemovableHandle] = []
        self.hook_lock = threading.Lock()
        self.runs, self.used = UnitRuns(), UsedParameters(self._device)
        self.changing: set[int] = set()
        """Numbers of the modules whose buffers any shard has changed; the same on every rank."""
        self.phase: FSDPSums | None = None
        """The running phase."""
        self.running: FSDPSums | None = None
        """The phase, while it runs a backward pass."""
        self._norms = WholeNorms()

    @override
    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """Adds a model, and replaces its parameters by DTensors (``replaced``)."""
        self._check(model)
        broadcast_from_rank_0(model)
        before = dict(model.named_parameters())
        self.shard_parameters(model)
        self.replaced.update({old: model.get_parameter(name) for name, old in before.items()})
        # Emptied, because an optimizer that still refers to them would keep the whole model in
        # memory.
        for name, old in before.items():
            old.data = old.data.new_empty(0)
            if has_gradient(old):
                self.names[old] = name
                self._hooks.append(on_gradient(old, self._strayed))
        names = {parameter: name for name, parameter in model.named_parameters()}
        for parameter in names:
            self.numbers[parameter] = len(self.parameters)
            self.parameters.append(parameter)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                self._add_unit(module, names)
        self.buffers.attach(model)
        return model

    def _check(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if parameter.dim() == 0:
                raise ModelError(
                    f"parameter {name!r} is a scalar, which strategy='fsdp' cannot shard over processes. Give it the shape "
                    "(1,), or use another strategy.",
                    code="fsdp-scalar-parameter",
                )
            if parameter in self.replaced or is_dtensor(parameter):
                raise ModelError(
                    f"parameter {name!r} also belongs to another prepared model, but with strategy='fsdp' models cannot share "
                    "parameters. Prepare one module that contains both models, or use another strategy.",
                    code="fsdp-shared-parameter",
                )

    @override
    def shard_parameters(self, model: nn.Module) -> None:
        if self._mesh is None:
            self._mesh = DeviceMesh.from_group(default_group(), self._device.type)
        for module in (*find_units(model), model) if any(True for _ in model.parameters()) else ():
            if not isinstance(module, FSDPModule):
                # which fully_shard would do, but cannot where that makes new parameters
                move(module, self._device)
                fully_shard(module, mesh=self._mesh)
        model.to(self._device)  # its buffers
        model.register_forward_hook(self._reshard)

    def _add_unit(self, module: FSDPModule, names: dict[Parameter, str]) -> None:
        if self.times_forward:
            module.set_custom_all_gather(TimedAllGather(self.waited))  # type: ignore[arg-type]  # whose base is private
        unit = Unit(module, len(self.units), self.world_size, self._has_begun, self._enters, self._is_through)
        self.units.append(unit)
        places = {
            parameter: (unit, slices, slot) for slices in unit.slices for slot, parameter in enumerate(slices.parameters)
        }
        for whole, parameter in unit.gathered.items():
            self.names[whole] = self.names[parameter] = names[parameter]
            if has_gradient(whole):
                self.places[whole] = places[parameter]
                self._hooks += [on_gradient(whole, self._arrived), on_gradient(parameter, self._strayed)]

    @override
    def open(self, plan: StepPlan, phase: int) -> PhaseSums:
        """Raises:
        DataError: a global batch has too few samples for all shards.
        """
        if min(plan.sizes) < self._num_shards:
            raise DataError(
                f"step {plan.number}: a global batch of {min(plan.sizes)} samples leaves some of the {self._num_shards} "
                "shards empty, but with strategy='fsdp' all processes must run the model equally often. Use DataLoader(..., "
                "drop_last=True), a larger batch_size, or another strategy.",
                code="fsdp-empty-shard",
            )
        self.buffers.begin_phase(num_filled(plan.sizes, self._num_shards))
        self.runs.begin_phase(phase)
        self.used.begin_phase(phase)
        self._num_phases += 1
        if isinstance(self.exchange, Exchange):
            self.exchange.begin_phase(self._num_phases, self._subtrees)
        else:
            self.exchange.begin_phase(self._subtrees)
        self.phase = FSDPSums(self, plan.number)
        return self.phase

    @override
    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._mesh = [], None
        self._norms.close()

    def _reshard(self, model: nn.Module, *_: object) -> None:
        """Reshards after a forward pass that no backward pass follows, which alone would do so
        otherwise."""
        is_trained = id(model) in {id(unit.module) for unit in self.units}
        runs_shard = self.phase is not None and self.phase.micro is not None
        if isinstance(model, FSDPModule) and (not runs_shard or not is_trained or not torch.is_grad_enabled()):
            model.reshard()

    # Within the script's forward and backward passes

    def _has_begun(self, unit: Unit) -> bool:
        """Notes that a forward pass of a unit begins. Returns whether it counts: not if it is an
        evaluation's, or a checkpoint's."""
        if self.phase is None or self.phase.micro is None or self.running is not None:
            return False
        self.runs.begun(unit)
        return True

    def _arrived(self, whole: Parameter) -> None:
        if self.running is not None:
            self.running.arrived(whole)

    def _strayed(self, parameter: Parameter) -> None:
        """Refuses a gradient of this rank's slice of a parameter: no other rank's shards are in
        it."""
        if self.running is not None:
            raise _penalty(f"part of the loss was computed from the parameter {self.names[parameter]!r}")

    def _enters(self, unit: Unit) -> None:
        """Notes that the backward pass has the gradient of an output of a unit, whose parameters
        PyTorch gathers if it is the first."""
        if self.running is not None:
            self.runs.entered(unit)

    def _is_through(self, unit: Unit) -> None:
        if self.running is not None:
            self.running.is_through(unit)


class FSDPSums(PhaseSums):
    """The sums of a phase: of the slices of gradients that this rank owns, over all ranks.

    Args:
        strategy: opens the phase.
        step: the number of the step.
    """

    def __init__(self, strategy: FSDPStrategy, step: int) -> None:
        self._strategy, self._step = strategy, step
        self._gradients, self._runs, self._used = strategy.gradients, strategy.runs, strategy.used
        self._buffers, self._units = strategy.buffers, strategy.units
        self.micro: MicroBatch | None = None
        """The running micro-batch; None: between two."""
        self._call = 0
        self._factor: float | Tensor = 1.0
        self._changes: list[Node[dict[int, Tensor]]] = []
        self._sent: set[Unit] = set()
        """The units whose gradients the newest backward pass has sent."""

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        self.micro = micro
        self._runs.begin_shard()
        for unit in self._units:
            unit.begin_shard()
        self._strategy.waited.take()  # an evaluation may have come before

    @override
    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        self._strategy.waited_in_forward_s = self._strategy.waited.take()
        refuse_create_graph(options, "fsdp")
        if is_dtensor(loss):
            raise _penalty("the loss is a DTensor, so part of it was computed from parameters")
        self._call, self._factor, self._sent = call, usable(factor, self._strategy.parameters), set()
        self._gradients.begin_backward(call)
        self._runs.begin_backward()
        self._used.begin_call(call)
        self._strategy.running = self
        try:
            with self._buffers.restored_after():
                loss.backward(**options)  # type: ignore[no-untyped-call]
        finally:
            self._strategy.running = None
        # Units that the backward pass has not announced, in a fixed order, which is the same on all
        # ranks: each is a collective.
        for unit in reversed(self._units):
            if unit not in self._sent and (unit.has_run or any(map(self._gradients.holds, unit.slices))):
                self._send(unit)
        self._runs.end_backward(keeps_graph=bool(options.get("retain_graph")))
        self._strategy.waited_s = self._strategy.waited.take()

    @torch.no_grad()
    @override
    def end_shard(self) -> None:
        micro, self.micro = self.micro, None
        assert micro is not None
        changes = self._buffers.end_shard(micro)
        if changes is not None:
            push(self._changes, Node(micro.shard, 1, changes), add_changes)

    @override
    def news(self) -> News:
        order = self._runs.new_order()
        modules = {number for node in self._changes for number in node.value}
        return News(
            modules=sorted(modules - self._strategy.changing),
            looks=self._buffers.looks(),
            unit_orders=() if order is None else (order,),
            has_other_parameters=self._used.is_new,
        )

    @override
    def gather(self, row: list[float]) -> list[list[float]] | None:
        return None

    @torch.no_grad()
    @override
    def finish(self, divisors: Sequence[float | None], news: News) -> None:
        self._runs.agree(news.unit_orders, self._strategy.world_size, self._step)
        if news.has_other_parameters:
            self._used.exchange(len(divisors), len(self._strategy.parameters))
        self._strategy.changing.update(news.modules)
        changes = self._buffers.start_sums(self._strategy.changing, self._changes, self._strategy.exchange.start)
        self._strategy.exchange.finish()
        self._buffers.apply(changes)
        self._buffers.warn_of_lost_changes(news.looks)
        for call, slices, row in self._gradients.totals():
            divisor = divisors[call] if call < len(divisors) else None
            self._set_gradients(call, slices, row if divisor is None else row.div_(divisor))
        # All units, also those whose forward pass no backward pass has followed: otherwise the
        # optimizer would step the slices, and the next forward pass would use the gathered, older
        # weights.
        for unit in self._units:
            unit.module.reshard()
        self._end()

    @override
    def abandon(self) -> None:
        self._buffers.rewind()
        # Otherwise the script would find whole weights, which an optimizer's step does not change.
        for unit in self._units:
            unit.module.reshard()
        self._end()

    def _end(self) -> None:
        self._gradients.clear()
        self._strategy.phase = None

    # The backward pass

    def arrived(self, whole: Parameter) -> None:
        """Moves a new gradient into its leaf. Called within the backward pass."""
        with self._strategy.hook_lock, torch.no_grad():
            unit, slices, slot = self._strategy.places[whole]
            gradient, whole.grad = whole.grad, None
            if gradient is None or gradient.is_sparse:
                raise unusable(gradient, self._strategy.names[whole])
            if unit in self._sent:
                raise came_in_pieces(self._strategy.names[whole])
            if is_left_out(self._factor):
                return
            self._gradients.put(slices, slot, gradient, self._factor)
            self._used.add(self._call, self._strategy.numbers[slices.parameters[slot]])

    def is_through(self, unit: Unit) -> None:
        """Notes that the backward pass completed one forward pass of a unit: after the last, sends
        its gradients.

        Every rank comes here at the same place among PyTorch's collectives, whichever parameters
        had a gradient."""
        if self._runs.passed(unit) and unit not in self._sent:
            self._send(unit)

    def _send(self, unit: Unit) -> None:
        """Sends the gradients of a unit to their owners, and adds the gradients that arrive."""
        assert self.micro is not None
        self._sent.add(unit)
        for slices in unit.slices:
            self._gradients.send(slices, self.micro)

    def _set_gradients(self, call: int, slices: Slices, row: Tensor) -> None:
        """Sets this rank's slices of gradients to their sums, where any shard had one."""
        used = self._used.of(call)
        slots = [slot for slot, parameter in enumerate(slices.parameters) if self._strategy.numbers[parameter] in used]
        for slot, own in zip(slots, slices.own(row, slots), strict=True):
            parameter: Any = slices.parameters[slot]
            gradient = cut_like(own.to(parameter.dtype), parameter)
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def _penalty(what: str) -> LossError:
    return LossError(
        f"{what} outside of the forward pass of its block, where strategy='fsdp' keeps it sharded. This part of the gradient "
        "would not be summed over the shards. For a penalty on the weights use weight_decay, or compute it in the block's "
        "forward pass.",
        code="fsdp-sharded-loss",
    )


def make(config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]) -> Strategy:
    """Creates the strategy for ``sync.table.make_strategy``."""
    if config.precision == "16-master":
        raise ConfigError(
            "precision='16-master' with strategy='fsdp': each process would make float16 copies of its slices of the weights "
            "only. Use 16-mixed or bf16-mixed, which also have float32 weights.",
            code="fsdp-master-copies",
        )
    return FSDPStrategy(
        dist.get_rank(),
        dist.get_world_size(),
        num_shards,
        devices,
        ranks_per_machine=transport.ranks_per_machine,
        between_machines=transport.interface != "lo",
    )
