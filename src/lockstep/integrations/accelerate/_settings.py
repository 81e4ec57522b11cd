"""The arguments of ``Accelerator``: their translation to lockstep's settings, and refusals."""

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
    "deepspeed_plugin": "DeepSpeed is not supported. To shard parameters, pass strategy='fsdp'",
    "deepspeed_plugins": "DeepSpeed is not supported. To shard parameters, pass strategy='fsdp'",
    "fsdp_plugin": "lockstep shards parameters itself. Pass strategy='fsdp' instead",
    "megatron_lm_plugin": "Megatron-LM is not supported. Remove the argument",
    "torch_tp_plugin": "tensor parallelism is not supported. Remove the argument",
    "parallelism_config": "tensor, context and sequence parallelism are not supported. To shard parameters, pass "
    "strategy='fsdp'",
    "dynamo_plugin": "compiling a prepared model is not supported. Call torch.compile(model) before prepare()",
}


def precision_of(mixed_precision: str) -> str:
    """Returns lockstep's name of a precision.

    Raises:
        ConfigError: the precision is not supported here.
    """
    if mixed_precision not in _PRECISIONS:
        raise ConfigError(
            f"mixed_precision={mixed_precision!r} is not supported by lockstep's Accelerator. Use 'no' or 'bf16'; for fp16, "
            "use lockstep's own loop with lockstep.join(precision='16-mixed').",
            code="precision-of-accelerator",
        )
    return _PRECISIONS[mixed_precision]


def refuse(arguments: dict[str, Any]) -> None:
    """Removes the arguments that lockstep does not support, and checks that they are not used.

    Raises:
        ConfigError: one of them is used.
    """
    for name, reason in _REFUSED.items():
        if arguments.pop(name, None) is not None:
            raise ConfigError(f"Accelerator({name}=...): {reason}.", code="argument-of-accelerator")
    backend = arguments.pop("dynamo_backend", None)
    if backend is not None and str(backend).upper() not in ("NO", str(DynamoBackend.NO)):
        raise ConfigError(
            f"Accelerator(dynamo_backend={backend!r}): {_REFUSED['dynamo_plugin']}.", code="argument-of-accelerator"
        )
    if arguments.pop("device_placement", True) is not True:
        raise ConfigError(
            "Accelerator(device_placement=False) is not supported: lockstep always moves models and batches to "
            "accelerator.device. Remove the argument.",
            code="argument-of-accelerator",
        )


def profile_of(handlers: Iterable[Any]) -> ProfileKwargs:
    """Returns the options of the profiler among ``kwargs_handlers``.

    Raises:
        ConfigError: a handler would change results.
    """
    profile = ProfileKwargs()
    for handler in handlers:
        if isinstance(handler, ProfileKwargs):
            profile = handler
        elif isinstance(handler, DistributedDataParallelKwargs):
            if handler.comm_hook != DDPCommunicationHookType.NO:
                raise ConfigError(
                    f"DistributedDataParallelKwargs(comm_hook={handler.comm_hook}) rounds gradients between processes, so "
                    "results would depend on the number of processes. Remove the hook.",
                    code="communication-hook",
                )
        else:
            raise ConfigError(
                f"Accelerator(kwargs_handlers=[{type(handler).__name__}(...)]) is not supported. Remove it; settings of "
                "lockstep are arguments of Accelerator, such as timeout_s=600.",
                code="handler-of-accelerator",
            )
    return profile
