"""The floating-point formats of one model: its weights, inputs, results, and intermediate values.

With the precisions that use PyTorch's autocast, the model is not changed. ``16-true`` and
``bf16-true`` keep all of it in 16 bits. With ``16-master`` the parameters stay float32 for the
optimizer, checkpoints and averages, and forward and backward passes use 16-bit copies instead.
Autograd records the copying, so every shard's gradients arrive at the parameters in float32, where
the sum over shards does not lose bits::

    float32 weight --.to(16 bits)--> copy --forward--> loss (float32)
    float32 .grad <----- cast ------ 16-bit gradient <--backward--
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from lockstep._base.errors import ConfigError, UsageError
from lockstep._data.batches import map_tensors
from lockstep._prepare.precision import CastScope, Precision
from lockstep._sync.buffers import NORMALIZATIONS
from lockstep._sync.gradients import widen


class ModelPrecision:
    """The forward and backward passes of one model in the run's precision.

    Args:
        model: the user's model, on its device. With a precision that applies to weights it is
            changed in place: parameters and buffers are the same objects, with another dtype.
    """

    def __init__(self, model: nn.Module, precision: Precision, device: torch.device) -> None:
        self._model = model
        self.precision = precision
        self._device = device
        self._holder = _Holder(model)
        self._copies: dict[str, Tensor] | None = None
        """The 16-bit copies of the last forward pass with gradients, until the next backward
        pass."""
        if precision.reach is not CastScope.OPERATIONS:
            self._cast_model()

    @property
    def reaches_backward(self) -> bool:
        """Whether backward passes must be run by ``backward``."""
        return self.precision.reach is CastScope.PASSES

    def forward(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns ``run(*args, **kwargs)`` in these formats. Floating-point results are float32,
        for the loss."""
        narrow = self.precision.narrow
        if narrow is None:
            return run(*args, **kwargs)
        if self.precision.reach is CastScope.OPERATIONS:
            with self.precision.autocast(self._device):
                return map_tensors(widen, run(*args, **kwargs))
        args, kwargs = map_tensors(lambda t: t.to(narrow) if t.is_floating_point() else t, (args, kwargs))
        if self.precision.reach is CastScope.PASSES:
            copies = self._make_copies()
            if torch.is_grad_enabled():
                self._copies = copies
            return map_tensors(widen, functional_call(self._holder, copies, (run, args, kwargs), tie_weights=False))
        return map_tensors(widen, run(*args, **kwargs))

    def backward(self, run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Calls ``run(*args, **kwargs)``, a backward pass, in which ``checkpoint()`` may run parts
        of the model again."""
        # With the copies of the forward pass: the repeated part must compute the same numbers, and
        # autograd checks that it saves the same tensors.
        copies, self._copies = self._copies, None
        functional_call(self._holder, copies or self._make_copies(), (run, args, kwargs), tie_weights=False)

    def _cast_model(self) -> None:
        for module in self._model.modules():
            # Running statistics are sums over many batches, which 16 bits would round away.
            stays = self.precision.reach is CastScope.PASSES and isinstance(module, NORMALIZATIONS)
            parameters = module.parameters(recurse=False) if self.precision.reach is CastScope.WEIGHTS else ()
            for tensor in (*parameters, *module.buffers(recurse=False)):
                if tensor.is_floating_point() and not stays:
                    tensor.data = tensor.data.to(self.precision.narrow)

    def _make_copies(self) -> dict[str, Tensor]:
        """Returns a 16-bit copy for every parameter name of the model. Names that share a parameter
        share the copy."""
        by_parameter: dict[Tensor, Tensor] = {}
        copies = {}
        for path, module in self._holder.named_modules():
            if isinstance(module, NORMALIZATIONS):
                continue
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                if parameter.is_floating_point():
                    if parameter not in by_parameter:
                        by_parameter[parameter] = parameter.to(self.precision.narrow)
                    copies[f"{path}.{name}"] = by_parameter[parameter]
        return copies


class _Holder(nn.Module):
    """The module for ``functional_call``, which replaces the model's parameters by copies during a
    call of ``run``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return run(*args, **kwargs)


def fit_optimizer(optimizer: Optimizer, precision: Precision) -> None:
    """Casts an optimizer's state to the dtype of its parameters, which may have been cast to 16
    bits.

    Raises:
        ConfigError: the optimizer divides by ``eps``, which is 0 in that dtype.
    """
    narrow = precision.narrow
    if narrow is None or precision.reach is not CastScope.WEIGHTS:
        return
    for group in optimizer.param_groups:
        eps = float(group.get("eps") or 0.0)
        if eps > 0 and torch.tensor(eps, dtype=narrow) == 0:
            raise ConfigError(
                f"{type(optimizer).__name__}(eps={eps:g}) with precision={precision.name!r}: eps is 0 in float16, so the "
                "optimizer would divide by 0 and weights would become NaN. Set eps=1e-4, use an optimizer without eps (SGD), "
                "or precision='16-master'.",
                code="eps-underflows",
            )
    if optimizer.state:
        optimizer.load_state_dict(optimizer.state_dict())  # loading casts to the parameters' dtype


def check_scaler(precision: Precision) -> None:
    """Checks that a GradScaler of the script works with the precision.

    Raises:
        UsageError: the run scales the loss itself, or gradients are float16, which a scaler
            refuses.
    """
    if precision.scales_loss:
        raise UsageError(
            f"a GradScaler with precision={precision.name!r}: the run scales the loss automatically. Remove the scaler.",
            code="scaler-not-needed",
        )
    if precision.narrow is torch.float16 and precision.reach is CastScope.WEIGHTS:
        raise UsageError(
            f"a GradScaler with precision={precision.name!r}: it does not support float16 gradients, which may underflow when "
            "they are unscaled. Remove it, or use precision='16-master', which scales the loss and has float32 gradients.",
            code="scaler-float16-gradients",
        )
