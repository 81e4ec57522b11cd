"""Adapters between prepared objects and checkpoints: what is saved of an object, and how it is
restored.

::

    object                 weights()              state_dict()                attributes()
    model, average         user's names           hidden tensors, gradients,
                                                  frozen, evaluation modes
    optimizer                                     state, param_groups,        changed attributes
                                                  inner optimizers
    schedule, scaler                              their own state

A model's weights are separate from the rest of its state, under the names of the user's model, so
that other programs can load them. The rest is what a run needs to resume as if it had not been
interrupted. PyTorch's ``state_dict`` alone is not enough: it omits gradients of an accumulation
that is under way, what is frozen, non-persistent buffers, and attributes of optimizers.

Objects are restored in place. The script and its libraries have references to the model, the groups
of the optimizer and their tensors, and a new object would leave those with the old values.
"""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from lockstep._base.trees import mapped
from lockstep._prepare.attributes import Attributes, is_code
from lockstep._prepare.structure import Structure, named_tensors
from lockstep._world.comm.dtensors import distribute_like, to_local

Weights = dict[str, Tensor]
ATTRIBUTES = "lockstep.attributes"
"""The key of the attributes of optimizers, by name."""
_INNER = "inner"
"""The key of the states of optimizers inside an optimizer, by attribute."""


class StateAdapter:
    """The adapter of one object in the run's state. This base class is for objects with
    ``state_dict``."""

    kind = "object"
    """The kind of object, in names and messages."""
    remedy = ""
    """The remedy for changes that ``changes`` finds."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.name = self.kind
        """The name in files and messages."""
        self.is_compared = True
        """Whether the state must be the same on all ranks. If not, the state of rank 0 is saved."""
        self.options_at_birth = {name: mapped(value, _copied) for name, value in self.options().items()}
        """The initial options of an optimizer or a schedule, copied, since a step may change a list
        among them."""

    def weights(self) -> Weights | None:
        """Returns a model's weights, not copied; None: the object is not a model."""
        return None

    def state_dict(self) -> Any:
        """Returns the rest of the state: a tree of plain values and tensors, not copied."""
        return self.target.state_dict()

    def whole(self) -> tuple[Weights | None, Any]:
        """Returns ``weights()`` and ``state_dict()``."""
        return self.weights(), self.state_dict()

    def attributes(self) -> dict[str, Any]:
        """Returns the attributes of the object that belong to its state, by name. The attributes
        with types that checkpoints support are restored from the state, under ``ATTRIBUTES``. They
        may differ between ranks (by a clock), so rank 0's values are saved."""
        return {}

    def omitted(self) -> dict[str, Any]:
        """Returns changed attributes, by name, that the object's own ``state_dict`` omits."""
        return {}

    def after_first_step(self) -> None:
        """Accepts what the first step of a launch has made: the first step of another launch makes
        it again."""

    def changes(self) -> list[str]:
        """Returns descriptions of changes since prepare(), for which an object that is prepared in
        the same way could not take this state."""
        return []

    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        """Restores a state of an object of the same kind."""
        self.target.load_state_dict(state)

    def forms(self) -> Callable[[str], Tensor | None]:
        """Returns a function that returns the tensor whose form a stored tensor will have. Its
        argument is the name of a weight, or the path in the rest of the state
        (``state.0.exp_avg``). None: unknown, or no tensor."""
        return lambda _: None

    def describe(self) -> list[str]:
        """Returns lines that must be the same when the run is resumed."""
        return []

    def options(self) -> dict[str, Any]:
        """Returns the current options by name (followed by " of group <number>" if there are
        several groups)."""
        return {}

    def apply_options(self, names: list[str], before: Mapping[str, str]) -> None:
        """Sets the named options to their initial values. ``before``: the ``repr`` of their values
        in the checkpoint."""

    def compared(self) -> Iterator[tuple[str, Any]]:
        """Yields pairs of a description and a value that must be the same on all ranks."""
        yield "the state", self.state_dict()


OPTION = "an option"
"""The name of the part of an optimizer's state that is in its ``param_groups``, without
parameters."""


class ModelAdapter(StateAdapter):
    """The adapter of a model: weights, tensors that its state dict omits, gradients, and the names
    of frozen parameters and of modules in evaluation mode."""

    kind = "model"
    remedy = "Change models before team.prepare(); parameters that learn later can have requires_grad=False until then"

    def __init__(self, target: nn.Module) -> None:
        super().__init__(target)
        self._prepared = Structure(innermost(target))

    @override
    def after_first_step(self) -> None:
        self._prepared.add_lazy_layers(innermost(self.target))

    @override
    def changes(self) -> list[str]:
        return self._prepared.changes_to(Structure(innermost(self.target)))

    @override
    def weights(self) -> Weights:
        state = innermost(self.target).state_dict()
        return {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}

    @override
    def state_dict(self) -> Any:
        return self.whole()[1]

    @override
    def whole(self) -> tuple[Weights, Any]:
        model: nn.Module = self.target
        state = innermost(model).state_dict()
        weights = {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}
        saved = set(map(_memory_of, weights.values()))
        parameters, buffers = named_tensors(model)
        tensors = {**parameters, **buffers}
        return weights, {
            "extra": {name: value for name, value in state.items() if name not in weights},
            "hidden": {name: tensor.detach() for name, tensor in tensors.items() if _memory_of(tensor) not in saved},
            "gradients": {name: _pack_gradient(p.grad) for name, p in parameters.items() if p.grad is not None},
            "frozen": [name for name, p in parameters.items() if not p.requires_grad],
            "evaluating": [name for name, module in model.named_modules() if not module.training],
        }

    @torch.no_grad()
    @override
    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        assert weights is not None
        model: nn.Module = self.target
        inner = innermost(model)
        current = inner.state_dict()
        values = {name: distribute_like(value, current.get(name, value)) for name, value in weights.items()}
        for name, value in values.items():
            _make_buffer(inner, name, value)
        # With the versions of the layers' formats. Without them, a layer would take the values for
        # an old format and convert them (BatchNorm would reset its counter of batches).
        all_values = OrderedDict({**values, **state["extra"]})
        all_values._metadata = getattr(current, "_metadata", {})  # type: ignore[attr-defined]
        inner.load_state_dict(all_values)
        for name, value in state["hidden"].items():
            _put_hidden(model, name, value)
        frozen, evaluating = set(state["frozen"]), set(state["evaluating"])
        for name, parameter in model.named_parameters():
            gradient = state["gradients"].get(name)
            parameter.grad = (
                None if gradient is None else distribute_like(_unpack_gradient(gradient), parameter).to(parameter.device)
            )
            parameter.requires_grad_(name not in frozen)
        for name, module in model.named_modules():
            module.training = name not in evaluating

    @override
    def forms(self) -> Callable[[str], Tensor | None]:
        current = {**_tensors_of(self.target), **_tensors_of(innermost(self.target))}
        state = {f"{part}.{name}": tensor for part in ("hidden", "gradients") for name, tensor in current.items()}
        return {**state, **innermost(self.target).state_dict(), **current}.get

    @override
    def describe(self) -> list[str]:
        """Returns lines about parameters. Buffers may be created later, and loading checks them."""
        return [
            f"{name} of shape {tuple(parameter.shape)}, {str(parameter.dtype).removeprefix('torch.')}"
            for name, parameter in innermost(self.target).named_parameters()
        ]

    @override
    def compared(self) -> Iterator[tuple[str, Any]]:
        for tensors in named_tensors(self.target):
            yield from ((repr(name), tensor) for name, tensor in tensors.items())


class AverageAdapter(ModelAdapter):
    """The adapter of an ``AveragedModel``."""

    kind = "average"


class OptimizerAdapter(StateAdapter):
    """The adapter of an optimizer and of the optimizers in its attributes, for example SAM's
    ``base_optimizer``, whose momentum is not in SAM's own state."""

    kind = "optimizer"
    remedy = "Make all groups before team.prepare(); parameters that learn later can have requires_grad=False until then"

    def __init__(self, target: Optimizer, outer: tuple[Optimizer, ...] = ()) -> None:
        super().__init__(target)
        self._outer = (*outer, target)
        self._attributes = Attributes(target)
        self._known: dict[int, OptimizerAdapter] = {}
        self._inner()  # takes the snapshots of their attributes now
        self._group_sizes = _group_sizes(target)

    @override
    def changes(self) -> list[str]:
        now = _group_sizes(self.target)
        return (
            [] if now == self._group_sizes else [f"it has groups of {now} parameters, and had groups of {self._group_sizes}"]
        )

    def _inner(self) -> dict[str, OptimizerAdapter]:
        inner = inner_optimizers(self.target, self._outer)
        for optimizer in inner.values():
            if id(optimizer) not in self._known:
                self._known[id(optimizer)] = OptimizerAdapter(optimizer, self._outer)
        return {name: self._known[id(optimizer)] for name, optimizer in inner.items()}

    @override
    def state_dict(self) -> Any:
        state = _without_code(self.target.state_dict())
        saved = _ids_of(state)
        inner = {name: adapter.state_dict() for name, adapter in self._inner().items()}
        missed = {name: of_inner for name, of_inner in inner.items() if not (ids := _ids_of(of_inner)) or ids - saved}
        return {**state, **({_INNER: missed} if missed else {})}

    @torch.no_grad()
    @override
    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        shared = self._load(state)
        self._load_attributes(state.get(ATTRIBUTES, {}), shared)

    def _load(self, state: dict[str, Any]) -> dict[int, Any]:
        """Restores the states of this optimizer and of the optimizers in it. Returns their tensors,
        by the ids of the saved tensors."""
        self._load_own({key: value for key, value in state.items() if key not in (_INNER, ATTRIBUTES)})
        parameters = list(parameters_of(self.target))
        shared = {}
        for index, slots in _slots_in(state).items():
            now = self.target.state.get(parameters[index], {})
            shared.update({id(value): now[name] for name, value in slots.items() if name in now})
        inner = self._inner()
        for name, of_inner in state.get(_INNER, {}).items():
            shared.update(inner[name]._load(of_inner))
        return shared

    def _load_attributes(self, saved: Mapping[str, Any], shared: Mapping[int, Any]) -> None:
        own = dict(saved)
        for prefix, adapter in self._inner().items():
            of_inner = {name: own.pop(name) for name in saved if name.startswith(f"{prefix}.")}
            adapter._load_attributes({name.removeprefix(f"{prefix}."): value for name, value in of_inner.items()}, shared)
        self._attributes.restore(own, shared)

    @override
    def attributes(self) -> dict[str, Any]:
        inner = {f"{prefix}.{name}": v for prefix, each in self._inner().items() for name, v in each.attributes().items()}
        return {**self._attributes.changed(), **inner}

    @override
    def omitted(self) -> dict[str, Any]:
        inner = {f"{prefix}.{name}": v for prefix, each in self._inner().items() for name, v in each.omitted().items()}
        return {**self._attributes.omitted(), **inner}

    def _load_own(self, state: dict[str, Any]) -> None:
        groups = list(self.target.param_groups)
        state = _with_code(_distribute(self.target, state), groups)
        self.target.load_state_dict(state)
        _restore_kinds(self.target, state)
        # load_state_dict() makes new groups, but the script may have references to the old ones
        # (``group = optimizer.param_groups[0]``).
        for number, (group, loaded) in enumerate(zip(groups, self.target.param_groups, strict=True)):
            if group is not loaded:
                _renew(group, loaded)
                self.target.param_groups[number] = group

    @override
    def forms(self) -> Callable[[str], Tensor | None]:
        parameters = dict(enumerate(parameters_of(self.target)))
        inner = {f"{_INNER}.{name}.": adapter.forms() for name, adapter in self._inner().items()}

        def form(name: str) -> Tensor | None:
            for prefix, of_inner in inner.items():
                if name.startswith(prefix):
                    return of_inner(name.removeprefix(prefix))
            found = re.fullmatch(r"state\.(\d+)\.[^.]+", name)
            return None if found is None else parameters.get(int(found[1]))

        return form

    @override
    def describe(self) -> list[str]:
        groups = self.target.param_groups
        return [f"group {number} of {len(group['params'])} parameters" for number, group in enumerate(groups, 1)]

    @override
    def options(self) -> dict[str, Any]:
        groups = self.target.param_groups
        options = {}
        for number, group in enumerate(groups, 1):
            for name, value in group.items():
                if name != "params" and not is_code(value):
                    key = name if len(groups) == 1 else f"{name} of group {number}"
                    options[key] = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
        return options

    @override
    def apply_options(self, names: list[str], before: Mapping[str, str]) -> None:
        options, groups = self.options_at_birth, self.target.param_groups
        for number, group in enumerate(groups, 1):
            suffix = "" if len(groups) == 1 else f" of group {number}"
            changed = {
                name.removesuffix(suffix): options[name] for name in names if name.endswith(suffix) and name in options
            }
            if "initial_lr" in group:
                # A schedule has changed the rate since, so the change of the initial rate is
                # applied as a factor: 0.01 -> 0.02, decayed to 0.004, gives 0.008.
                base = "initial_lr" if "initial_lr" + suffix in options else "lr"
                if base != "lr":
                    changed.pop("lr", None)
                old = float(before.get(base + suffix, "0"))
                if base in changed and old:
                    factor = float(changed[base]) / old
                    changed.update(lr=float(group["lr"]) * factor, initial_lr=float(group["initial_lr"]) * factor)
            for name, value in changed.items():
                if isinstance(group.get(name), Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = value

    @override
    def compared(self) -> Iterator[tuple[str, Any]]:
        groups = self.target.param_groups
        yield (
            OPTION,
            [{name: value for name, value in group.items() if name != "params" and not is_code(value)} for group in groups],
        )
        for number, parameter in enumerate(parameters_of(self.target)):
            slots = self.target.state.get(parameter, {})
            slots = slots if isinstance(slots, dict) else {"state": slots}
            yield from ((f"{name!r} ({number})", value) for name, value in slots.items() if isinstance(value, Tensor))
        for name, adapter in self._inner().items():
            yield from ((f"{what} of {name}", value) for what, value in adapter.compared())


class ScheduleAdapter(StateAdapter):
    """The adapter of a schedule."""

    kind = "schedule"

    @override
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in self.target.state_dict().items() if _is_plain(value)}

    @override
    def apply_options(self, names: list[str], before: Mapping[str, str]) -> None:
        options = self.options_at_birth
        self.target.__dict__.update({name: options[name] for name in names if name in options})


class ScalerAdapter(StateAdapter):
    """The adapter of a loss scaler."""

    kind = "scaler"


def parameters_of(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """Returns the parameters of all groups of an optimizer."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def inner_optimizers(optimizer: Optimizer, outer: Iterable[Optimizer] = ()) -> dict[str, Optimizer]:
    """Returns the optimizers in attributes of an optimizer, or in lists or dicts there, by
    attribute and place. Optimizers that contain this one (``outer``) are left out: it may refer to
    them."""
    around = {id(optimizer), *map(id, outer)}
    found: dict[str, Optimizer] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, Optimizer) and id(value) not in around:
            found[name] = value

    for name, value in vars(optimizer).items():
        add(name, value)
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        for key, item in items:
            # A key may be a parameter, whose text would wait for a device: only the keys of
            # optimizers become text.
            if isinstance(item, Optimizer):
                add(f"{name}/{key}", item)
    return found


def _group_sizes(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def _ids_of(state: dict[str, Any]) -> set[int]:
    """Returns the ids of the values in an optimizer's state."""
    return {id(value) for slots in _slots_in(state).values() for value in slots.values()}


def _slots_in(state: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Returns the state of each parameter of an optimizer, by number. (An optimizer may also store
    other values under names.)"""
    return {index: slots for index, slots in state["state"].items() if isinstance(index, int) and isinstance(slots, dict)}


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def innermost(model: nn.Module) -> nn.Module:
    """Returns the user's model inside ``AveragedModel`` and compiled wrappers."""
    while True:
        inner = model.module if isinstance(model, AveragedModel) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for tensors in named_tensors(module) for name, tensor in tensors.items()}


def _memory_of(tensor: Tensor) -> tuple[Any, ...]:
    tensor = to_local(tensor)
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def _make_buffer(module: nn.Module, name: str, value: Tensor) -> None:
    """Creates or resizes a buffer that the new model lacks or has in another shape: it was created,
    or grew, in training."""
    owner_name, _, buffer_name = name.rpartition(".")
    try:
        owner = module.get_submodule(owner_name)
    except AttributeError:
        return  # load_state_dict reports it
    if buffer_name not in owner._buffers:
        if hasattr(owner, buffer_name):
            return
        owner.register_buffer(buffer_name, None)
    current = owner._buffers[buffer_name]
    if current is None:  # it was created after the first step
        device = next((parameter.device for parameter in owner.parameters()), torch.device("cpu"))
        setattr(owner, buffer_name, value.to(device))
    elif current.shape != value.shape or current.dtype != value.dtype or _is_expanded(current):
        owner._buffers[buffer_name] = value.to(current.device, copy=True)


def _put_hidden(module: nn.Module, name: str, value: Tensor) -> None:
    """Restores a parameter or buffer that the model's state dict omits."""
    owner_name, _, tensor_name = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    current = {**owner._buffers, **owner._parameters}.get(tensor_name)
    value = value if current is None else distribute_like(value, current)
    if current is not None and current.shape == value.shape and current.dtype == value.dtype and not _is_expanded(current):
        current.copy_(value)
        return
    # A buffer that was created or replaced in training, for example a cache that grew.
    device = next((tensor.device for tensor in (current, *module.parameters()) if tensor is not None), torch.device("cpu"))
    persistent = tensor_name in owner._buffers and tensor_name not in owner._non_persistent_buffers_set
    owner.register_buffer(tensor_name, value.to(device), persistent)


def _is_expanded(tensor: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _pack_gradient(gradient: Tensor) -> Any:
    # Checkpoints support strided tensors only, and the uncoalesced entries of a sparse gradient are
    # kept in order: coalescing would add duplicates now instead of later.
    if gradient.layout is not torch.sparse_coo:
        return gradient
    parts = {"indices": gradient._indices(), "values": gradient._values()}
    return {**parts, "shape": list(gradient.shape), "coalesced": gradient.is_coalesced()}


def _unpack_gradient(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.sparse_coo_tensor(
        value["indices"], value["values"], value["shape"], is_coalesced=value["coalesced"], check_invariants=True
    )


def _distribute(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Distributes the state of DTensor parameters over the ranks like the parameters."""
    parameters = list(parameters_of(optimizer))
    return {
        **state,
        "state": {
            **state["state"],
            **{
                index: {name: mapped(value, functools.partial(_like, parameters[index])) for name, value in slots.items()}
                for index, slots in _slots_in(state).items()
            },
        },
    }


def _like(parameter: Tensor, value: Any) -> Any:
    is_alike = isinstance(value, Tensor) and value.shape == parameter.shape
    return distribute_like(value, parameter) if is_alike else value


def _without_code(state: dict[str, Any]) -> dict[str, Any]:
    """Returns an optimizer's state without the functions in its groups, which the constructor makes
    again."""
    groups = state.get("param_groups")
    if not isinstance(groups, list) or not any(is_code(value) for group in groups for value in group.values()):
        return state
    return {
        **state,
        "param_groups": [{name: value for name, value in group.items() if not is_code(value)} for group in groups],
    }


def _with_code(state: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the state with the functions that are in the groups now: reverts
    ``_without_code``."""
    code = [{name: value for name, value in group.items() if is_code(value)} for group in groups]
    if not any(code):
        return state
    return {**state, "param_groups": [{**then, **now} for then, now in zip(state["param_groups"], code, strict=True)]}


def _renew(group: dict[str, Any], loaded: dict[str, Any]) -> None:
    """Copies the values of one group to another, in place if they are tensors (``lr``)."""
    for name in group.keys() - loaded.keys():
        del group[name]
    for name, value in loaded.items():
        before = group.get(name)
        if is_code(before):  # load_state_dict() has copied the object of a method
            continue
        if isinstance(before, Tensor) and isinstance(value, Tensor) and before.shape == value.shape:
            before.copy_(value)
        else:
            group[name] = value


def _restore_kinds(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Reverts conversions of ``load_state_dict``. It casts values to the dtype of their parameter,
    although float32 masters must stay float32. It also rebuilds containers, so that deques lose
    their length, and strings become other strings."""
    parameters = list(parameters_of(optimizer))
    for index, slots in _slots_in(state).items():
        parameter = parameters[index]
        now = optimizer.state[parameter]
        for name, value in slots.items():
            if isinstance(value, Tensor):
                is_other = isinstance(now.get(name), Tensor) and now[name].dtype != value.dtype
            else:
                is_other = isinstance(value, Iterable) and name in now
            if is_other:
                now[name] = mapped(value, lambda leaf: leaf.to(parameter.device) if isinstance(leaf, Tensor) else leaf)  # noqa: B023
