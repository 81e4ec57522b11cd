"""The floating-point formats of one model: its weights, inputs, results, and intermediate values.

With the precisions that use PyTorch's autocast, the model is not changed. ``16-true`` and
``bf16-true`` keep all of it in 16 bits. With ``16-master`` the parameters stay float32 for the
optimizer, checkpoints and averages, and forward and backward passes use 16-bit copies in their
place. Autograd records the copying, so every shard's gradients arrive at the parameters in float32.
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
    """Computes the passes of one model in the run's precision.

    Args:
        model: the user's, on its device. With a precision that applies to weights it is changed in
            place: parameters and buffers stay the same objects, with another dtype.
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
        """``run(*args, **kwargs)`` in these formats. Floating-point results are float32, for the
        loss."""
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
        """``run(*args, **kwargs)``, a backward pass, in which ``checkpoint()`` may run parts of the
        model again."""
        copies, self._copies = self._copies, None
        functional_call(self._holder, copies or self._make_copies(), (run, args, kwargs), tie_weights=False)

    def _cast_model(self) -> None:
        for module in self._model.modules():
            stays = self.precision.reach is CastScope.PASSES and isinstance(module, NORMALIZATIONS)
            parameters = module.parameters(recurse=False) if self.precision.reach is CastScope.WEIGHTS else ()
            for tensor in (*parameters, *module.buffers(recurse=False)):
                if tensor.is_floating_point() and not stays:
                    tensor.data = tensor.data.to(self.precision.narrow)

    def _make_copies(self) -> dict[str, Tensor]:
        """A 16-bit copy for every parameter name of the model; names that share a parameter share
        the copy."""
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
    """The module for ``functional_call``, which replaces the model's parameters by copies while
    ``run`` is called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return run(*args, **kwargs)


def fit_optimizer(optimizer: Optimizer, precision: Precision) -> None:
    """Cast an optimizer's state to the dtype of its parameters, which may have been cast to 16
    bits.

    Raises:
        ConfigError: it divides by ``eps``, which is 0 in that dtype.
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
        optimizer.load_state_dict(optimizer.state_dict())  # loading casts to the parameters' dtype


def check_scaler(precision: Precision) -> None:
    """Check that a script's GradScaler works with the precision.

    Raises:
        UsageError: the run scales the loss itself, or gradients are float16, which a scaler
            refuses.
    """
    if precision.scales_loss:
        raise UsageError(
            f"a GradScaler with precision={precision.name!r}: the run scales the loss automatically, so leave it out"
        )
    if precision.narrow is torch.float16 and precision.reach is CastScope.WEIGHTS:
        raise UsageError(
            f"a GradScaler with precision={precision.name!r}: gradients are float16 here, which it refuses, since they may "
            "underflow when it unscales them. Leave it out; or use precision='16-master', whose gradients are float32, and "
            "scaled by the run."
        )
