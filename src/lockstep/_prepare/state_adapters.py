"""Adapters between prepared objects and checkpoints: what is saved of an object, and how it is
restored.

A model's weights are separate from the rest of its state, under the names of the user's model, so
that they can be loaded anywhere. The rest is what a run needs to resume as if it had not been
interrupted.
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
from lockstep._prepare.structure import Structure
from lockstep._world.comm.dtensors import distribute_like, to_local

Weights = dict[str, Tensor]
ATTRIBUTES = "lockstep.attributes"
"""The key of what optimizers keep in attributes, by name."""
_INNER = "inner"
"""The key of the states of optimizers in an optimizer, by attribute."""


class StateAdapter:
    """The adapter of one object in the run's state. This base class is for objects with
    ``state_dict``."""

    kind = "object"
    remedy = ""
    """What to do where ``changes`` has found some."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.name = self.kind
        """The name in files and messages."""
        self.is_compared = True
        """Whether the state must be the same on all ranks. If not, rank 0's is saved."""
        self.options_at_birth = {name: mapped(value, _copied) for name, value in self.options().items()}
        """The initial options of an optimizer or a schedule: copies, since a step may fill a list
        among them."""

    def weights(self) -> Weights | None:
        """A model's weights, not copied; None: not a model."""
        return None

    def state_dict(self) -> Any:
        """The rest of the state: a tree of plain values and tensors, not copied."""
        return self.target.state_dict()

    def attributes(self) -> dict[str, Any]:
        """What of the state is in attributes of the object, by name, with whatever is in them: what
        a checkpoint can hold of it comes back in the state, under ``ATTRIBUTES``. Ranks may differ
        in it, by a clock, say: it is rank 0's."""
        return {}

    def omitted(self) -> dict[str, Any]:
        """Attributes that have changed, by name, and that the object's own ``state_dict`` leaves
        out."""
        return {}

    def after_first_step(self) -> None:
        """After the first step of a launch: what has been made since then will be made again by
        that of another launch."""

    def changes(self) -> list[str]:
        """In what the object differs from what was prepared, in words, so that another one that is
        prepared like it could not take its state."""
        return []

    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        """Restore a state of an object of the same kind."""
        self.target.load_state_dict(state)

    def forms(self) -> Callable[[str], Tensor | None]:
        """Returns the tensor whose form a stored one of this name will have: of the weights by
        their own names, of the rest of the state by the path there (``state.0.exp_avg``). None: it
        is not known, or none."""
        return lambda _: None

    def describe(self) -> list[str]:
        """Lines that must be the same when the run is resumed."""
        return []

    def options(self) -> dict[str, Any]:
        """The current options by name (followed by " of group <number>" if there are several
        groups)."""
        return {}

    def apply_options(self, names: list[str], before: Mapping[str, str]) -> None:
        """Set the named options to their initial values; ``before``: the ``repr`` of their values
        in the checkpoint."""

    def compared(self) -> Iterator[tuple[str, Any]]:
        """Pairs of a description and a value that must be the same on all ranks."""
        yield "the state", self.state_dict()


OPTION = "an option"
"""The part of an optimizer's state that its ``param_groups`` hold besides parameters."""


class ModelAdapter(StateAdapter):
    """A model: weights, tensors that its state dict omits, gradients, and what is frozen or in
    evaluation mode."""

    kind = "model"
    remedy = "Change models before team.prepare(): what is to learn later can have requires_grad=False until then"

    def __init__(self, target: nn.Module) -> None:
        super().__init__(target)
        self._prepared = Structure(innermost(target))

    @override
    def after_first_step(self) -> None:
        self._prepared.add_lazy_layers(Structure(innermost(self.target)))

    @override
    def changes(self) -> list[str]:
        return self._prepared.changes_to(Structure(innermost(self.target)))

    @override
    def weights(self) -> Weights:
        state = innermost(self.target).state_dict()
        return {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}

    @override
    def state_dict(self) -> Any:
        model: nn.Module = self.target
        saved = {_memory_of(value) for value in self.weights().values()}
        state = innermost(model).state_dict()
        return {
            "extra": {name: value for name, value in state.items() if not isinstance(value, Tensor)},
            "hidden": {name: value for name, value in _tensors_of(model).items() if _memory_of(value) not in saved},
            "gradients": {name: _pack_gradient(p.grad) for name, p in model.named_parameters() if p.grad is not None},
            "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
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
        # With the versions of the layers' formats, or they would take what they get for that of an
        # old one.
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
        """Parameters only: buffers may be created later, and loading checks them."""
        return [
            f"{name} of shape {tuple(parameter.shape)}, {str(parameter.dtype).removeprefix('torch.')}"
            for name, parameter in innermost(self.target).named_parameters()
        ]

    @override
    def compared(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in (*self.target.named_parameters(), *self.target.named_buffers()):
            yield repr(name), tensor


class AverageAdapter(ModelAdapter):
    """An ``AveragedModel``."""

    kind = "average"


class OptimizerAdapter(StateAdapter):
    """An optimizer, with those that are its attributes: SAM's ``base_optimizer``, whose momentum
    its own state omits."""

    kind = "optimizer"
    remedy = (
        "Make all groups before team.prepare(): parameters with requires_grad=False are left alone until they are to learn"
    )

    def __init__(self, target: Optimizer, outer: tuple[Optimizer, ...] = ()) -> None:
        super().__init__(target)
        self._outer = (*outer, target)
        self._attributes = Attributes(target)
        self._known: dict[int, OptimizerAdapter] = {}
        self._inner()  # whose attributes are seen as they are now
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
        held = _ids_of(state)
        inner = {name: adapter.state_dict() for name, adapter in self._inner().items()}
        missed = {name: of_inner for name, of_inner in inner.items() if not (ids := _ids_of(of_inner)) or ids - held}
        return {**state, **({_INNER: missed} if missed else {})}

    @torch.no_grad()
    @override
    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        shared = self._load(state)
        self._load_attributes(state.get(ATTRIBUTES, {}), shared)

    def _load(self, state: dict[str, Any]) -> dict[int, Any]:
        """Restore the states of this optimizer and of those in it; returns the tensors in them, by
        the id of what each was restored from."""
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
        # PyTorch has made new groups, and the script may hold the old ones (``group =
        # optimizer.param_groups[0]``).
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
                # A schedule has changed the rate since: apply the change of the initial rate as a
                # factor.
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
    """A schedule."""

    kind = "schedule"

    @override
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in self.target.state_dict().items() if _is_plain(value)}

    @override
    def apply_options(self, names: list[str], before: Mapping[str, str]) -> None:
        options = self.options_at_birth
        self.target.__dict__.update({name: options[name] for name in names if name in options})


class ScalerAdapter(StateAdapter):
    """A loss scaler."""

    kind = "scaler"


def parameters_of(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """The parameters of all groups of an optimizer."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def inner_optimizers(optimizer: Optimizer, outer: Iterable[Optimizer] = ()) -> dict[str, Optimizer]:
    """The optimizers that are attributes of an optimizer, or in a list or dict there, by attribute
    and place in it. Without those around it, ``outer``, which it may know, too."""
    around = {id(optimizer), *map(id, outer)}
    found: dict[str, Optimizer] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, Optimizer) and id(value) not in around:
            found[name] = value

    for name, value in vars(optimizer).items():
        add(name, value)
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        for key, item in items:
            if isinstance(
                item, Optimizer
            ):  # (keys that are parameters are not made into text: that would wait for a device)
                add(f"{name}/{key}", item)
    return found


def _group_sizes(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def _ids_of(state: dict[str, Any]) -> set[int]:
    """The ids of the values in an optimizer's state."""
    return {id(value) for slots in _slots_in(state).values() for value in slots.values()}


def _slots_in(state: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """What an optimizer's state holds for each of its parameters, by number. (Anything else may be
    there under a name.)"""
    return {index: slots for index, slots in state["state"].items() if isinstance(index, int) and isinstance(slots, dict)}


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def innermost(model: nn.Module) -> nn.Module:
    """The user's model inside ``AveragedModel`` and compiled wrappers."""
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
    return {
        **{name: parameter.detach() for name, parameter in module.named_parameters()},
        **{name: buffer.detach() for name, buffer in module.named_buffers()},
    }


def _memory_of(tensor: Tensor) -> tuple[Any, ...]:
    tensor = to_local(tensor)
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _make_buffer(module: nn.Module, name: str, value: Tensor) -> None:
    """Create or resize a buffer that the new model lacks or has in another shape: it was created,
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
    """Restore a parameter or buffer that the model's state dict omits."""
    owner_name, _, tensor_name = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    current = {**owner._buffers, **owner._parameters}.get(tensor_name)
    value = value if current is None else distribute_like(value, current)
    if current is not None and current.shape == value.shape and current.dtype == value.dtype and not _is_expanded(current):
        current.copy_(value)
        return
    # A buffer that was created or replaced in training: a cache that grew, say.
    device = next((tensor.device for tensor in (current, *module.parameters()) if tensor is not None), torch.device("cpu"))
    persistent = tensor_name in owner._buffers and tensor_name not in owner._non_persistent_buffers_set
    owner.register_buffer(tensor_name, value.to(device), persistent)


def _is_expanded(tensor: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _pack_gradient(gradient: Tensor) -> Any:
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
    """Distribute the state of DTensor parameters like the parameters."""
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
    """An optimizer's state without the functions in its groups, which the constructor puts there
    again."""
    groups = state.get("param_groups")
    if not isinstance(groups, list) or not any(is_code(value) for group in groups for value in group.values()):
        return state
    return {
        **state,
        "param_groups": [{name: value for name, value in group.items() if not is_code(value)} for group in groups],
    }


def _with_code(state: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The opposite of ``_without_code``, with the functions that are there now."""
    code = [{name: value for name, value in group.items() if is_code(value)} for group in groups]
    if not any(code):
        return state
    return {**state, "param_groups": [{**then, **now} for then, now in zip(state["param_groups"], code, strict=True)]}


def _renew(group: dict[str, Any], loaded: dict[str, Any]) -> None:
    """Give a group the values of another, in place if they are tensors (``lr``)."""
    for name in group.keys() - loaded.keys():
        del group[name]
    for name, value in loaded.items():
        before = group.get(name)
        if is_code(before):  # (PyTorch has copied the object of a method)
            continue
        if isinstance(before, Tensor) and isinstance(value, Tensor) and before.shape == value.shape:
            before.copy_(value)
        else:
            group[name] = value


def _restore_kinds(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Undo what ``load_state_dict`` does to values: it casts them to their parameter's dtype, where
    float32 masters must stay float32, and rebuilds containers: deques lose their length, and texts
    become another text."""
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
