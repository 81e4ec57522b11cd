"""The floating-point formats of one model: of its weights, of its inputs and results, and of what comes between.

With the precisions that leave the choice to PyTorch's autocast, the model stays as it is. ``16-true`` and ``bf16-true`` keep
all of it in 16 bits. With ``16-master`` the script's parameters stay the float32 ones that the optimizer steps, that are
saved and averaged; forward and backward passes see 16-bit copies in their places. Autograd makes these copies, so every
shard's gradients arrive at the parameters in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from lockstep.data.batches import map_tensors
from lockstep.errors import ConfigError, UsageError
from lockstep.precision import CastScope, Precision
from lockstep.prepare.contents import innermost
from lockstep.sync.buffers import NORMALISATIONS


class ModelPrecision:
    """How the passes of one model are computed.

    Args:
        model: the user's, on its device. With a precision that reaches its weights it is changed in place: parameters and
            buffers stay the same objects, and become narrower.
        precision: of the run.
        device: of this process.
    """

    def __init__(self, model: nn.Module, precision: Precision, device: torch.device) -> None:
        self._model = model
        self.precision = precision
        self._device = device
        self._holder = _Holder(model)
        self._copies: dict[str, Tensor] | None = None
        """Those of the last forward pass with gradients, until a backward pass is over."""
        if precision.reach is not CastScope.OPERATIONS:
            self._narrow_what_is_kept()

    @property
    def reaches_backward(self) -> bool:
        """Whether backward passes must go through ``backward``."""
        return self.precision.reach is CastScope.PASSES

    def forward(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """``run(*args, **kwargs)``, in these formats. Floating results are float32, for the loss."""
        narrow = self.precision.narrow
        if narrow is None:
            return run(*args, **kwargs)
        if self.precision.reach is CastScope.OPERATIONS:
            with self.precision.autocast(self._device):
                return map_tensors(_widen, run(*args, **kwargs))
        args, kwargs = map_tensors(lambda one: one.to(narrow) if one.is_floating_point() else one, (args, kwargs))
        if self.precision.reach is CastScope.PASSES:
            copies = self._make_copies()
            if torch.is_grad_enabled():
                self._copies = copies
            return map_tensors(_widen, functional_call(self._holder, copies, (run, args, kwargs), tie_weights=False))
        return map_tensors(_widen, run(*args, **kwargs))

    def backward(self, run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """``run(*args, **kwargs)``, which is a backward pass: ``checkpoint()`` runs parts of the model again in it."""
        copies, self._copies = self._copies, None
        functional_call(self._holder, copies or self._make_copies(), (run, args, kwargs), tie_weights=False)

    def _narrow_what_is_kept(self) -> None:
        for module in self._model.modules():
            stays = self.precision.reach is CastScope.PASSES and isinstance(module, NORMALISATIONS)
            parameters = module.parameters(recurse=False) if self.precision.reach is CastScope.WEIGHTS else ()
            for tensor in (*parameters, *module.buffers(recurse=False)):
                if tensor.is_floating_point() and not stays:
                    tensor.data = tensor.data.to(self.precision.narrow)

    def _make_copies(self) -> dict[str, Tensor]:
        """A copy for every place in which the model has a parameter: one for the places that share one."""
        made: dict[Tensor, Tensor] = {}
        copies = {}
        for path, module in self._holder.named_modules():
            if isinstance(module, NORMALISATIONS):
                continue
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                if parameter.is_floating_point():
                    if parameter not in made:
                        made[parameter] = parameter.to(self.precision.narrow)
                    copies[f"{path}.{name}"] = made[parameter]
        return copies


class _Holder(nn.Module):
    """What ``functional_call`` puts the copies into: it has the model, and runs whatever it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return run(*args, **kwargs)


def fit_optimizer(optimizer: Optimizer, precision: Precision) -> None:
    """Bring an optimizer's state into the format of its parameters, which may have become narrower.

    Raises:
        ConfigError: it divides by ``eps``, which is 0 in that format.
    """
    narrow = precision.narrow
    if narrow is None or precision.reach is not CastScope.WEIGHTS:
        return
    for group in optimizer.param_groups:
        eps = float(group.get("eps") or 0.0)
        if eps > 0 and torch.tensor(eps, dtype=narrow) == 0:
            raise ConfigError(
                f"{type(optimizer).__name__}(eps={eps:g}) with precision={precision.name!r}: in float16 that is 0, and so "
                "become the squares of small gradients, so it would divide by 0 and the weights become NaN. Give it eps=1e-4, "
                "use an optimizer without such a division (SGD), or precision='16-master', whose weights are float32."
            )
    if optimizer.state:
        optimizer.load_state_dict(optimizer.state_dict())  # loading casts to the parameters' format


def fit_state(thing: Any, weights: Mapping[str, Tensor] | None, rest: Any) -> tuple[dict[str, Tensor] | None, Any]:
    """What a checkpoint of another precision holds of an object (see ``contents.Content``), in the object's formats."""
    if isinstance(thing, nn.Module):
        assert weights is not None
        own = {name: value for name, value in innermost(thing).state_dict().items() if isinstance(value, Tensor)}
        inside = {**dict(thing.named_parameters()), **dict(thing.named_buffers())}
        like = {"hidden": inside, "gradients": inside}
        return _cast(weights, own), {**rest, **{name: _cast(rest[name], tensors) for name, tensors in like.items()}}
    if isinstance(thing, Optimizer):
        parameters = [parameter for group in thing.param_groups for parameter in group["params"]]
        slots = {
            index: _cast(
                values, {name: parameters[index] for name, value in values.items() if getattr(value, "ndim", 0) > 0}
            )
            for index, values in rest["state"].items()
        }
        return None, {**rest, "state": slots}
    return None, rest


def _cast(values: Mapping[str, Any], like: Mapping[str, Tensor]) -> dict[str, Any]:
    """Floating tensors in the formats of those of the same names."""
    return {
        name: value.to(like[name].dtype)
        if name in like and isinstance(value, Tensor) and value.is_floating_point() and like[name].is_floating_point()
        else value
        for name, value in values.items()
    }


def check_scaler(precision: Precision) -> None:
    """Make sure that a script's own loss scaler has something to do.

    Raises:
        UsageError: the run scales the loss, or gradients are of a format that a scaler does not take.
    """
    if precision.scales_loss:
        raise UsageError(
            f"a GradScaler with precision={precision.name!r}: the run scales the loss by itself, so leave it out"
        )
    if precision.narrow is torch.float16 and precision.reach is CastScope.WEIGHTS:
        raise UsageError(
            f"a GradScaler with precision={precision.name!r}: gradients are float16 here, which it refuses, since they may "
            "vanish when it unscales them. Leave it out; or use precision='16-master', whose gradients are float32, and scaled "
            "by the run."
        )


def _widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
