"""The arguments of ``Accelerator``: lockstep's settings from accelerate's, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from accelerate.utils import (
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    DynamoBackend,
    ProfileKwargs,
)

from lockstep._base.errors import ConfigError

_PRECISIONS = {"no": "32-true", "bf16": "bf16-mixed"}
_REFUSED = {
    "deepspeed_plugin": "DeepSpeed trains in parallel in its own way. strategy='fsdp' shards parameters over the processes",
    "deepspeed_plugins": "DeepSpeed trains in parallel in its own way. strategy='fsdp' shards parameters over the processes",
    "fsdp_plugin": "lockstep shards parameters itself: pass strategy='fsdp' instead",
    "megatron_lm_plugin": "Megatron-LM trains in parallel in its own way",
    "torch_tp_plugin": "tensor parallelism is not supported",
    "parallelism_config": "tensor, context and sequence parallelism are not supported. strategy='fsdp' shards parameters",
    "dynamo_plugin": "torch.compile of a prepared model is not supported here: call torch.compile(model) before prepare()",
}


def precision_of(mixed_precision: str) -> str:
    """lockstep's name of a precision.

    Raises:
        ConfigError: it is not supported here.
    """
    if mixed_precision not in _PRECISIONS:
        raise ConfigError(
            f"mixed_precision={mixed_precision!r}: lockstep's Accelerator has 'no' and 'bf16'. (fp16 needs a loss scaler, "
            "which lockstep's own loop has: lockstep.join(precision='16-mixed').)"
        )
    return _PRECISIONS[mixed_precision]


def refuse(arguments: dict[str, Any]) -> None:
    """Check the arguments that lockstep does not support.

    Raises:
        ConfigError: one of them is given.
    """
    for name, reason in _REFUSED.items():
        if arguments.pop(name, None) is not None:
            raise ConfigError(f"Accelerator({name}=...): {reason}.")
    backend = arguments.pop("dynamo_backend", None)
    if backend is not None and str(backend).upper() not in ("NO", str(DynamoBackend.NO)):
        raise ConfigError(f"Accelerator(dynamo_backend={backend!r}): {_REFUSED['dynamo_plugin']}.")
    if arguments.pop("device_placement", True) is not True:
        raise ConfigError(
            "Accelerator(device_placement=False): lockstep moves models and batches to accelerator.device. Leave it out."
        )


def profile_of(handlers: Iterable[Any]) -> ProfileKwargs:
    """The options of the profiler among ``kwargs_handlers``.

    Raises:
        ConfigError: another one would change what is computed.
    """
    profile = ProfileKwargs()
    for handler in handlers:
        if isinstance(handler, ProfileKwargs):
            profile = handler
        elif isinstance(handler, DistributedDataParallelKwargs):
            if handler.comm_hook != DDPCommunicationHookType.NO:
                raise ConfigError(
                    f"DistributedDataParallelKwargs(comm_hook={handler.comm_hook}): a hook rounds gradients between "
                    "processes, so the result would depend on their number. Leave it out."
                )
        else:
            raise ConfigError(
                f"Accelerator(kwargs_handlers=[{type(handler).__name__}(...)]): lockstep takes ProfileKwargs, and "
                "DistributedDataParallelKwargs without a hook. Settings of processes are its own: "
                "Accelerator(timeout_s=600, ...)."
            )
    return profile
